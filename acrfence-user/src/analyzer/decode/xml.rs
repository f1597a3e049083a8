//! XML: prefixes, layout, CDATA and comments mean nothing; namespaces, attributes and text do.

use std::borrow::Cow;

use quick_xml::NsReader;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::{XmlVersion, escape::resolve_predefined_entity};

use super::super::value::Value;
use super::{MOST_NODES, Undecodable};

/// Deepest nesting that is followed.
const DEEPEST: usize = 96;

/// Reads one document. Documents with a DTD are refused: entities could say anything.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    let mut reader = NsReader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut open: Vec<Element> = vec![Element::default()];
    let mut nodes = 0;
    loop {
        let (namespace, event) = reader.read_resolved_event().map_err(|_| Undecodable)?;
        nodes += 1;
        if nodes > MOST_NODES || open.len() > DEEPEST {
            return Err(Undecodable);
        }
        match event {
            Event::Start(start) => {
                let element = Element::new(&start, &namespace, open.last())?;
                open.push(element);
            }
            Event::Empty(start) => {
                let element = Element::new(&start, &namespace, open.last())?;
                let parent = open.last_mut().ok_or(Undecodable)?;
                parent.children.push(Child::Element(element));
            }
            Event::End(_) => {
                let element = open.pop().ok_or(Undecodable)?;
                let parent = open.last_mut().ok_or(Undecodable)?;
                parent.children.push(Child::Element(element));
            }
            Event::Text(text) => {
                let content = text.xml10_content();
                open.last_mut().ok_or(Undecodable)?.add_text(&content);
            }
            Event::CData(text) => {
                let content = text.xml10_content();
                open.last_mut().ok_or(Undecodable)?.add_text(&content);
            }
            Event::GeneralRef(reference) => {
                let parent = open.last_mut().ok_or(Undecodable)?;
                match reference.resolve_char_ref().map_err(|_| Undecodable)? {
                    Some(c) => parent.add_text(c.encode_utf8(&mut [0; 4])),
                    None => {
                        parent.add_text(resolve_predefined_entity(&reference).ok_or(Undecodable)?)
                    }
                }
            }
            Event::DocType(_) => return Err(Undecodable),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    let (Some(document), true) = (open.pop(), open.is_empty()) else {
        return Err(Undecodable);
    };
    let elements = document
        .children
        .iter()
        .filter(|child| matches!(child, Child::Element(_)))
        .count();
    if elements != 1 || document.has_text() {
        return Err(Undecodable);
    }
    Ok(document.into_value())
}

#[derive(Default)]
struct Element {
    name: String,
    namespace: String,
    /// The namespace where it is not the parent's.
    declared: Option<String>,
    attributes: Vec<(String, String)>,
    children: Vec<Child>,
}

enum Child {
    Text(String),
    Element(Element),
}

impl Element {
    fn new(
        start: &BytesStart<'_>,
        namespace: &ResolveResult<'_>,
        parent: Option<&Element>,
    ) -> Result<Self, Undecodable> {
        let namespace = match namespace {
            ResolveResult::Bound(ns) => ns.0.to_owned(),
            ResolveResult::Unbound => String::new(),
            ResolveResult::Unknown(_) => return Err(Undecodable),
        };
        let mut attributes = Vec::new();
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|_| Undecodable)?;
            let key = attribute.key.0;
            if key == "xmlns" || key.starts_with("xmlns:") {
                continue;
            }
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|_| Undecodable)?;
            attributes.push((format!("@{key}"), value.into_owned()));
        }
        let declared = (parent.is_none_or(|p| p.namespace != namespace)).then(|| namespace.clone());
        Ok(Self {
            name: start.local_name().into_inner().to_owned(),
            namespace,
            declared,
            attributes,
            children: Vec::new(),
        })
    }

    fn add_text(&mut self, text: &str) {
        if let Some(Child::Text(earlier)) = self.children.last_mut() {
            earlier.push_str(text);
        } else {
            self.children.push(Child::Text(text.to_owned()));
        }
    }

    fn has_text(&self) -> bool {
        self.children
            .iter()
            .any(|child| matches!(child, Child::Text(text) if !text.trim().is_empty()))
    }

    fn into_value(self) -> Value<'static> {
        let has_text = self.has_text();
        let has_elements = self
            .children
            .iter()
            .any(|child| matches!(child, Child::Element(_)));
        let mut entries: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
        if let Some(namespace) = self.declared.filter(|ns| !ns.is_empty()) {
            entries.push((Cow::Borrowed("@xmlns"), Value::text(namespace)));
        }
        for (name, value) in self.attributes {
            entries.push((Cow::Owned(name), Value::text(value)));
        }
        if has_text && has_elements {
            // Mixed content: what stands between what matters.
            let content = self
                .children
                .into_iter()
                .map(|child| match child {
                    Child::Text(text) => Value::text(text.trim()),
                    Child::Element(element) => Value::Map(vec![(
                        Cow::Owned(element.name.clone()),
                        element.into_value(),
                    )]),
                })
                .collect();
            entries.push((Cow::Borrowed("#content"), Value::List(content)));
            return Value::Map(entries);
        }
        if !has_elements {
            let text: String = self
                .children
                .into_iter()
                .map(|child| match child {
                    Child::Text(text) => text,
                    Child::Element(_) => String::new(),
                })
                .collect();
            let text = Value::text(text.trim());
            if entries.is_empty() {
                // That an element is there says something, even if nothing is in it.
                return if text.is_empty() {
                    Value::Code(Cow::Borrowed(""))
                } else {
                    text
                };
            }
            if !text.is_empty() {
                entries.push((Cow::Borrowed("#text"), text));
            }
            return Value::Map(entries);
        }
        for child in self.children {
            let Child::Element(element) = child else {
                continue;
            };
            let name = Cow::Owned(element.name.clone());
            super::add_repeatable(&mut entries, name, element.into_value());
        }
        Value::Map(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_layout_and_comments_mean_nothing() {
        let one = read(r#"<s:E xmlns:s="u"><s:A c="1">x&amp;y</s:A><s:B/></s:E>"#).unwrap();
        let two = read(
            "<?xml version='1.0'?>\n<E xmlns='u'>\n <!-- hi -->\n <A c='1'><![CDATA[x&y]]></A>\n <B></B>\n</E>",
        )
        .unwrap();
        assert_eq!(one, two);
        let other = read(r#"<s:E xmlns:s="v"><s:A c="1">x&amp;y</s:A><s:B/></s:E>"#).unwrap();
        assert_ne!(one, other);
    }

    #[test]
    fn refuses_entities_and_broken_documents() {
        for bad in [
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "<a>&x;</a>",
            "<a><b></a></b>",
            "<a/><b/>",
            "text",
            "<a>",
            "",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read(&"<a>".repeat(50_000)).is_err());
    }
}
