//! The analyzer LLM: settles texts that may say the same in other words.
//!
//! It sees one text field at a time, in both calls, and nothing else of them. It is asked both ways
//! round and once with a contradiction put in (a canary: a model that an instruction inside of the
//! text talks into "yes" says yes there too). It can never overrule an intent difference, and
//! whatever goes wrong (no server, slow, nonsense, an answer off the schema) leaves the comparison
//! as it was: unsure.

mod prompt;

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::sync::Cache;
use ollama_rs::Ollama;
use ollama_rs::error::OllamaError;
use ollama_rs::generation::chat::ChatMessage;
use ollama_rs::generation::chat::request::ChatMessageRequest;
use ollama_rs::generation::parameters::{FormatType, JsonStructure, KeepAlive, TimeUnit};
use ollama_rs::models::ModelOptions;
use serde::Deserialize;
use sha2::Digest as _;
use tokio::sync::Semaphore;

use super::pairs::{Pair, PairVerdict};
use super::{Examination, Residue};
use crate::words::{Comparison, FieldClass, Likeness};

/// How to reach the model.
#[derive(Clone, Debug)]
pub struct LlmSettings {
    /// Base URL of Ollama (`http://127.0.0.1:11434`).
    pub url: String,
    /// Model name (`qwen2.5-coder:1.5b`).
    pub model: String,
    /// Longest wait for all answers about one call.
    pub timeout: Duration,
    /// Most requests in flight.
    pub concurrency: usize,
    /// Most answers kept.
    pub cache_entries: u64,
}

impl Default for LlmSettings {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:11434".into(),
            model: "qwen2.5-coder:1.5b".into(),
            timeout: Duration::from_secs(15),
            concurrency: 2,
            cache_entries: 4096,
        }
    }
}

/// Longest text that is shown to the model, in bytes.
pub const LONGEST_TEXT: usize = 4000;

/// Most texts of one call that are shown to the model.
pub const MOST_TEXTS: usize = 6;

/// A client of the analyzer LLM.
pub struct Llm {
    settings: LlmSettings,
    ollama: Ollama,
    http: reqwest::Client,
    slots: Arc<Semaphore>,
    answers: Cache<[u8; 32], Meaning>,
}

/// A comparison after the model was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The comparison; unchanged where the model gave no usable answer.
    pub comparison: Comparison,
    /// Whether the model's answers decided it.
    pub by_model: bool,
    /// Why the model could not be asked or understood, in words.
    pub trouble: Option<String>,
}

impl Settled {
    /// The comparison as it is, where there is no model to ask.
    pub fn without_model(examination: Examination) -> Self {
        Self {
            comparison: examination.comparison,
            by_model: false,
            trouble: None,
        }
    }
}

/// What `doctor` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LlmHealth {
    /// The server answers, has the model, and the model tells two simple pairs apart.
    Ready {
        /// Server version.
        version: String,
        /// How long it took to settle one text, with the model loaded.
        per_text: Duration,
    },
    /// The server answers, but the model must be pulled.
    ModelMissing {
        /// Models it has.
        has: Vec<String>,
    },
    /// The model answers, but not as it must; why, in words.
    Unfit(String),
    /// No usable server; why, in words.
    Unreachable(String),
}

/// What the model reads in two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The same, both ways round, and it noticed the canary.
    Same,
    /// Another meaning, both ways round.
    Other,
    /// It contradicts itself.
    Torn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    same_intent: YesOrNo,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum YesOrNo {
    Yes,
    No,
}

impl Llm {
    /// A client; nothing is contacted yet. Fails on a URL that cannot be one of Ollama.
    pub fn new(settings: LlmSettings) -> Result<Self, String> {
        let mut url = reqwest::Url::parse(&settings.url).map_err(|e| {
            format!(
                "`{}` is no URL of an Ollama server ({e}); give one like http://127.0.0.1:11434",
                settings.url
            )
        })?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(format!(
                "`{}` is no URL of an Ollama server; give one like http://127.0.0.1:11434",
                settings.url
            ));
        }
        // Without a slash at the end the last segment of the path would be lost.
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        let http = reqwest::Client::builder()
            .timeout(settings.timeout)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| format!("no HTTP client for the analyzer could be made: {e}"))?;
        Ok(Self {
            ollama: Ollama::builder()
                .url(url)
                .reqwest_client(http.clone())
                .build(),
            http,
            slots: Arc::new(Semaphore::new(settings.concurrency.max(1))),
            answers: Cache::new(settings.cache_entries),
            settings,
        })
    }

    /// Asks the model about what an examination left open.
    ///
    /// Where anything is unknown beside prose, or differs in intent, nothing is asked: the answer
    /// could not change the outcome.
    pub async fn settle(&self, examination: Examination) -> Settled {
        let Examination {
            comparison,
            residue,
            ..
        } = examination;
        let only_prose = comparison.likeness == Likeness::Unsure
            && comparison
                .fields
                .iter()
                .all(|f| f.class != FieldClass::Unknown)
            && comparison
                .fields
                .iter()
                .filter(|f| f.class == FieldClass::Prose)
                .count()
                == residue.len();
        if !only_prose || residue.is_empty() {
            return Settled {
                comparison,
                by_model: false,
                trouble: None,
            };
        }
        let untouched = comparison.clone();
        let asked =
            tokio::time::timeout(self.settings.timeout, self.ask_all(comparison, &residue)).await;
        match asked {
            Ok(Ok(comparison)) => Settled {
                comparison,
                by_model: true,
                trouble: None,
            },
            Ok(Err(trouble)) => Settled {
                comparison: untouched,
                by_model: false,
                trouble: Some(trouble),
            },
            Err(_) => Settled {
                comparison: untouched,
                by_model: false,
                trouble: Some(format!(
                    "{} gave no answer within {:?}; give it more time or a faster machine",
                    self.settings.model, self.settings.timeout
                )),
            },
        }
    }

    async fn ask_all(
        &self,
        mut comparison: Comparison,
        residue: &[Residue],
    ) -> Result<Comparison, String> {
        if residue.len() > MOST_TEXTS {
            return Err(format!(
                "{} texts differ; at most {MOST_TEXTS} of one call are shown to the model",
                residue.len()
            ));
        }
        let mut likeness = Likeness::Equivalent;
        for text in residue {
            let meaning = self.meaning(&text.recorded, &text.restored).await?;
            let field = &mut comparison.fields[text.field];
            match meaning {
                Meaning::Same => field.reason.push_str("; the model reads the same meaning"),
                Meaning::Other => {
                    field.class = FieldClass::Intent;
                    field.reason.push_str("; the model reads another meaning");
                    likeness = Likeness::Different;
                    // One difference is enough.
                    break;
                }
                Meaning::Torn => {
                    field.reason.push_str("; the model contradicts itself");
                    likeness = Likeness::Unsure;
                    break;
                }
            }
        }
        comparison.likeness = likeness;
        Ok(comparison)
    }

    async fn meaning(&self, one: &str, two: &str) -> Result<Meaning, String> {
        if one.len() > LONGEST_TEXT || two.len() > LONGEST_TEXT {
            return Err(format!(
                "a text has over {LONGEST_TEXT} bytes and is not shown to the model"
            ));
        }
        let key = cache_key(&self.settings.model, one, two);
        if let Some(known) = self.answers.get(&key) {
            return Ok(known);
        }
        let meaning = self.read(one, two).await?;
        self.answers.insert(key, meaning);
        Ok(meaning)
    }

    /// Asks, whatever is in the cache.
    async fn read(&self, one: &str, two: &str) -> Result<Meaning, String> {
        let there = self.ask(one, two).await?;
        let back = self.ask(two, one).await?;
        Ok(match (there, back) {
            (YesOrNo::Yes, YesOrNo::Yes) => {
                // The same text with a contradiction put in must be told apart.
                let canary = prompt::contradicted(two);
                match self.ask(one, &canary).await? {
                    YesOrNo::No => Meaning::Same,
                    YesOrNo::Yes => Meaning::Torn,
                }
            }
            (YesOrNo::No, YesOrNo::No) => Meaning::Other,
            _ => Meaning::Torn,
        })
    }

    async fn ask(&self, one: &str, two: &str) -> Result<YesOrNo, String> {
        let question = prompt::question(one, two)?;
        let mut messages = vec![ChatMessage::system(prompt::SYSTEM.into())];
        for (question, answer) in prompt::examples() {
            messages.push(ChatMessage::user(question));
            messages.push(ChatMessage::assistant(answer.into()));
        }
        messages.push(ChatMessage::user(question));
        let content = self.chat(messages).await?;
        let answer: Answer = serde_json::from_str(content.trim()).map_err(|_| {
            format!(
                "{} answered something else than was asked for",
                self.settings.model
            )
        })?;
        Ok(answer.same_intent)
    }

    async fn chat(&self, messages: Vec<ChatMessage>) -> Result<String, String> {
        let _slot = self
            .slots
            .acquire()
            .await
            .map_err(|_| "the analyzer is being shut down".to_owned())?;
        let request = ChatMessageRequest::new(self.settings.model.clone(), messages)
            .format(FormatType::StructuredJson(Box::new(schema()?)))
            .keep_alive(KeepAlive::Until {
                time: 30,
                unit: TimeUnit::Minutes,
            })
            .options(
                ModelOptions::default()
                    .temperature(0.0)
                    .seed(7)
                    .num_predict(16)
                    .num_ctx(4096),
            );
        self.ollama
            .send_chat_messages(request)
            .await
            .map(|answer| answer.message.content)
            .map_err(|e| self.explain(&e))
    }

    fn explain(&self, error: &OllamaError) -> String {
        let (url, model) = (&self.settings.url, &self.settings.model);
        match error {
            OllamaError::ReqwestError(e) if e.is_timeout() => {
                format!(
                    "{model} at {url} gave no answer in time; give it more time or a faster machine"
                )
            }
            OllamaError::ReqwestError(_) => {
                format!("no Ollama server answers at {url}; start one or set its address")
            }
            OllamaError::JsonError(_) => format!("what answers at {url} is no Ollama server"),
            OllamaError::Other(text)
            | OllamaError::InternalError(ollama_rs::error::InternalOllamaError { message: text }) =>
            {
                let text: String = text.chars().take(200).collect();
                format!("the Ollama server at {url} refused: {text}; is {model} pulled?")
            }
            OllamaError::ToolCallError(_) => {
                format!("{model} answered with a tool call, which was not asked for")
            }
        }
    }

    /// The model's verdict on two whole calls, without a comparison: a baseline for the report,
    /// never used for a verdict.
    pub async fn alone(&self, pair: &Pair) -> PairVerdict {
        let messages = prompt::whole_calls(pair)
            .into_iter()
            .map(|(user, text)| {
                if user {
                    ChatMessage::user(text)
                } else {
                    ChatMessage::assistant(text)
                }
            })
            .collect();
        let answer = match self.chat(messages).await {
            Ok(content) => {
                serde_json::from_str::<Answer>(content.trim()).map_err(|e| e.to_string())
            }
            Err(e) => Err(e),
        };
        match answer {
            Ok(Answer {
                same_intent: YesOrNo::Yes,
            }) => PairVerdict::Replay,
            Ok(_) => PairVerdict::Diverge,
            Err(_) => PairVerdict::Hold,
        }
    }

    /// Whether the server is there, has the model, and the model is fit for the work.
    pub async fn health(&self) -> LlmHealth {
        let version = match self.version().await {
            Ok(version) => version,
            Err(why) => return LlmHealth::Unreachable(why),
        };
        match self.ollama.list_local_models().await {
            Ok(models) => {
                let has: Vec<String> = models.into_iter().map(|m| m.name).collect();
                let wanted = &self.settings.model;
                let there = has
                    .iter()
                    .any(|name| name == wanted || name.strip_suffix(":latest") == Some(wanted));
                if !there {
                    return LlmHealth::ModelMissing { has };
                }
            }
            Err(e) => return LlmHealth::Unreachable(self.explain(&e)),
        }
        let mut per_text = Duration::ZERO;
        for (one, two, wanted) in prompt::FITNESS {
            let began = Instant::now();
            match self.read(one, two).await {
                Ok(meaning) if (meaning == Meaning::Same) == *wanted => {}
                Ok(_) => {
                    return LlmHealth::Unfit(format!(
                        "{} does not tell \"{one}\" and \"{two}\" apart as it must; use another model",
                        self.settings.model
                    ));
                }
                Err(why) => return LlmHealth::Unfit(why),
            }
            // The first question may have waited for the model to be loaded; only the last counts.
            per_text = began.elapsed();
        }
        LlmHealth::Ready { version, per_text }
    }

    /// Has the server fetch the model. May take long: there is no time limit but the caller's.
    pub async fn pull(&self) -> Result<(), String> {
        let patient = reqwest::Client::builder()
            .no_proxy()
            .build()
            .map_err(|e| e.to_string())?;
        Ollama::builder()
            .url(self.ollama.url().clone())
            .reqwest_client(patient)
            .build()
            .pull_model(self.settings.model.clone(), false)
            .await
            .map(|_| ())
            .map_err(|e| self.explain(&e))
    }

    async fn version(&self) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let url = &self.settings.url;
        let address = format!("{}api/version", self.ollama.url_str());
        let answer = self
            .http
            .get(address)
            .send()
            .await
            .map_err(|e| self.explain(&e.into()))?;
        let text = answer.text().await.map_err(|e| self.explain(&e.into()))?;
        let version: Version = serde_json::from_str(&text)
            .map_err(|_| format!("what answers at {url} is no Ollama server"))?;
        Ok(version.version.chars().take(40).collect())
    }
}

fn schema() -> Result<JsonStructure, String> {
    serde_json::from_value(serde_json::json!({
        "type": "object",
        "properties": {"same_intent": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["same_intent"],
        "additionalProperties": false,
    }))
    .map_err(|e| e.to_string())
}

fn cache_key(model: &str, one: &str, two: &str) -> [u8; 32] {
    let mut hash = sha2::Sha256::new();
    for part in [prompt::VERSION, model, one, two] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}
