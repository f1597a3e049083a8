//! What MCP servers say of their tools.

use std::collections::HashMap;

use parking_lot::RwLock;
use serde::Deserialize;

use crate::analyzer::ToolSchema;
use crate::policy::ToolHints;
use crate::words::Request;

/// Most tools remembered; a server that names more is a nuisance, not a tool server.
const MOST_TOOLS: usize = 20_000;

/// Tools by server and name.
#[derive(Default)]
pub(super) struct ToolBook(RwLock<HashMap<(String, String), Tool>>);

struct Tool {
    hints: ToolHints,
    schema: ToolSchema,
}

#[derive(Deserialize)]
struct Told<'a> {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default, rename = "inputSchema", borrow)]
    input: Option<&'a serde_json::value::RawValue>,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(default, rename = "readOnlyHint")]
    read_only: bool,
}

impl ToolBook {
    /// Takes in the array of a `tools/list` result. What does not read is left out: an unknown tool
    /// is an effect.
    pub(super) fn learn(&self, server: &str, tools: &str) {
        let Ok(raw) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(tools) else {
            return;
        };
        let mut book = self.0.write();
        for tool in raw
            .iter()
            .filter_map(|raw| serde_json::from_str::<Told<'_>>(raw.get()).ok())
        {
            let key = (server.to_owned(), tool.name);
            if book.len() >= MOST_TOOLS && !book.contains_key(&key) {
                return;
            }
            let schema = ToolSchema {
                description: tool.description,
                input: tool
                    .input
                    .map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned()),
            };
            book.insert(
                key,
                Tool {
                    hints: ToolHints {
                        read_only: tool.annotations.read_only,
                    },
                    schema,
                },
            );
        }
    }

    pub(super) fn hints(&self, server: &str, tool: &str) -> ToolHints {
        let key = (server.to_owned(), tool.to_owned());
        self.0.read().get(&key).map(|t| t.hints).unwrap_or_default()
    }

    pub(super) fn schema(&self, request: &Request) -> Option<ToolSchema> {
        let Request::Mcp(mcp) = request else {
            return None;
        };
        let key = (mcp.server.clone(), mcp.name.clone());
        self.0.read().get(&key).map(|t| t.schema.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tool_that_does_not_read_does_not_hide_the_others() {
        let book = ToolBook::default();
        book.learn("s", r#"[{"name":1},{"name":"look","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object"}}]"#);
        assert!(book.hints("s", "look").read_only);
        assert!(!book.hints("s", "pay").read_only);
        book.learn("s", "not json");
        assert!(book.hints("s", "look").read_only);
    }
}
