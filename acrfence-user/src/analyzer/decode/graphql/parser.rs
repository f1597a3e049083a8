//! A document as operations and fragments.

use super::super::{MOST_NODES, Undecodable, json};
use super::DEEPEST;
use crate::analyzer::value::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Punct(char),
    Spread,
    Name(String),
    Variable(String),
    Number(String),
    Text(String),
}

#[derive(Clone, Debug)]
pub(super) enum Literal {
    Variable(String),
    Number(String),
    Text(String),
    Word(String),
    List(Vec<Literal>),
    Object(Vec<(String, Literal)>),
}

pub(super) type Arguments = Vec<(String, Literal)>;

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) variables: Vec<(String, Option<Literal>)>,
    pub(super) selection: Vec<Selection>,
}

#[derive(Debug)]
pub(super) enum Selection {
    Field {
        key: String,
        name: String,
        arguments: Arguments,
        directives: Vec<(String, Arguments)>,
        selection: Vec<Selection>,
    },
    Fragment(String, Vec<(String, Arguments)>),
    Inline(String, Vec<(String, Arguments)>, Vec<Selection>),
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Undecodable> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if out.len() > MOST_NODES {
            return Err(Undecodable);
        }
        let word_end = |from: &str| {
            from.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .unwrap_or(from.len())
        };
        let used = match c {
            c if c.is_whitespace() || c == ',' || c == '\u{feff}' => c.len_utf8(),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '{' | '}' | '(' | ')' | '[' | ']' | ':' | '=' | '!' | '|' | '@' | '&' => {
                out.push(Token::Punct(c));
                1
            }
            '.' if rest.starts_with("...") => {
                out.push(Token::Spread);
                3
            }
            '$' => {
                let end = word_end(&rest[1..]);
                out.push(Token::Variable(rest[1..=end].to_owned()));
                end + 1
            }
            '"' if rest.starts_with("\"\"\"") => {
                let end = rest[3..].find("\"\"\"").ok_or(Undecodable)?;
                out.push(Token::Text(rest[3..3 + end].trim().to_owned()));
                end + 6
            }
            '"' => {
                // Escapes are those of JSON.
                let mut end = 1;
                let bytes = rest.as_bytes();
                loop {
                    match bytes.get(end).ok_or(Undecodable)? {
                        b'"' => break,
                        b'\\' => end += 2,
                        _ => end += 1,
                    }
                }
                let quoted = rest.get(..=end).ok_or(Undecodable)?;
                let Value::Text(text) = json::read(quoted)? else {
                    return Err(Undecodable);
                };
                out.push(Token::Text(text.into_owned()));
                end + 1
            }
            c if c.is_ascii_digit() || c == '-' => {
                let end = rest[1..]
                    .find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)))
                    .map_or(rest.len(), |n| n + 1);
                let Value::Number(number) = json::read(&rest[..end])? else {
                    return Err(Undecodable);
                };
                out.push(Token::Number(number.into_owned()));
                end
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = word_end(rest);
                out.push(Token::Name(rest[..end].to_owned()));
                end
            }
            _ => return Err(Undecodable),
        };
        rest = &rest[used..];
    }
    Ok(out)
}

pub(super) struct Parser<'t> {
    pub(super) tokens: &'t [Token],
    pub(super) at: usize,
    pub(super) nodes: usize,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Result<Token, Undecodable> {
        let token = self.tokens.get(self.at).cloned().ok_or(Undecodable)?;
        self.at += 1;
        Ok(token)
    }

    fn punct(&mut self, wanted: char) -> Result<(), Undecodable> {
        match self.next()? {
            Token::Punct(c) if c == wanted => Ok(()),
            _ => Err(Undecodable),
        }
    }

    fn is(&self, wanted: char) -> bool {
        self.peek() == Some(&Token::Punct(wanted))
    }

    fn name(&mut self) -> Result<String, Undecodable> {
        match self.next()? {
            Token::Name(name) => Ok(name),
            _ => Err(Undecodable),
        }
    }

    pub(super) fn definition(
        &mut self,
        operations: &mut Vec<Operation>,
        fragments: &mut Vec<(String, String, Vec<Selection>)>,
    ) -> Result<(), Undecodable> {
        if self.is('{') {
            operations.push(Operation {
                kind: "query".into(),
                name: None,
                variables: Vec::new(),
                selection: self.selections(0)?,
            });
            return Ok(());
        }
        let kind = self.name()?;
        if kind == "fragment" {
            let name = self.name()?;
            if self.name()? != "on" {
                return Err(Undecodable);
            }
            let on = self.name()?;
            self.directives(0)?;
            fragments.push((name, on, self.selections(0)?));
            return Ok(());
        }
        if !matches!(kind.as_str(), "query" | "mutation" | "subscription") {
            return Err(Undecodable);
        }
        let name = match self.peek() {
            Some(Token::Name(_)) => Some(self.name()?),
            _ => None,
        };
        let mut variables = Vec::new();
        if self.is('(') {
            self.punct('(')?;
            while !self.is(')') {
                let Token::Variable(variable) = self.next()? else {
                    return Err(Undecodable);
                };
                self.punct(':')?;
                self.kind()?;
                let default = if self.is('=') {
                    self.punct('=')?;
                    Some(self.literal(0)?)
                } else {
                    None
                };
                self.directives(0)?;
                variables.push((variable, default));
            }
            self.punct(')')?;
        }
        if !self.directives(0)?.is_empty() {
            return Err(Undecodable);
        }
        operations.push(Operation {
            kind,
            name,
            variables,
            selection: self.selections(0)?,
        });
        Ok(())
    }

    fn kind(&mut self) -> Result<(), Undecodable> {
        let mut depth = 0usize;
        loop {
            match self.next()? {
                Token::Punct('[') => depth += 1,
                Token::Name(_) => break,
                _ => return Err(Undecodable),
            }
        }
        while self.is('!') || (depth > 0 && self.is(']')) {
            if let Token::Punct(']') = self.next()? {
                depth -= 1;
            }
        }
        if depth == 0 { Ok(()) } else { Err(Undecodable) }
    }

    fn selections(&mut self, depth: usize) -> Result<Vec<Selection>, Undecodable> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST_NODES {
            return Err(Undecodable);
        }
        self.punct('{')?;
        let mut out = Vec::new();
        while !self.is('}') {
            if self.peek() == Some(&Token::Spread) {
                self.at += 1;
                let on = match self.peek() {
                    Some(Token::Name(name)) if name == "on" => {
                        self.at += 1;
                        Some(self.name()?)
                    }
                    Some(Token::Name(_)) => {
                        let name = self.name()?;
                        let directives = self.directives(depth)?;
                        out.push(Selection::Fragment(name, directives));
                        continue;
                    }
                    _ => None,
                };
                let directives = self.directives(depth)?;
                let inner = self.selections(depth + 1)?;
                out.push(Selection::Inline(on.unwrap_or_default(), directives, inner));
                continue;
            }
            let first = self.name()?;
            let (key, name) = if self.is(':') {
                self.punct(':')?;
                (first, self.name()?)
            } else {
                (first.clone(), first)
            };
            let arguments = self.arguments(depth)?;
            let directives = self.directives(depth)?;
            let selection = if self.is('{') {
                self.selections(depth + 1)?
            } else {
                Vec::new()
            };
            out.push(Selection::Field {
                key,
                name,
                arguments,
                directives,
                selection,
            });
        }
        self.punct('}')?;
        if out.is_empty() {
            Err(Undecodable)
        } else {
            Ok(out)
        }
    }

    fn arguments(&mut self, depth: usize) -> Result<Arguments, Undecodable> {
        let mut out = Vec::new();
        if self.is('(') {
            self.punct('(')?;
            while !self.is(')') {
                let name = self.name()?;
                self.punct(':')?;
                out.push((name, self.literal(depth)?));
            }
            self.punct(')')?;
        }
        Ok(out)
    }

    fn directives(&mut self, depth: usize) -> Result<Vec<(String, Arguments)>, Undecodable> {
        let mut out = Vec::new();
        while self.is('@') {
            self.punct('@')?;
            let name = self.name()?;
            out.push((name, self.arguments(depth)?));
        }
        Ok(out)
    }

    fn literal(&mut self, depth: usize) -> Result<Literal, Undecodable> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST_NODES {
            return Err(Undecodable);
        }
        Ok(match self.next()? {
            Token::Variable(name) => Literal::Variable(name),
            Token::Number(number) => Literal::Number(number),
            Token::Text(text) => Literal::Text(text),
            Token::Name(word) => Literal::Word(word),
            Token::Punct('[') => {
                let mut items = Vec::new();
                while !self.is(']') {
                    items.push(self.literal(depth + 1)?);
                }
                self.punct(']')?;
                Literal::List(items)
            }
            Token::Punct('{') => {
                let mut entries = Vec::new();
                while !self.is('}') {
                    let name = self.name()?;
                    self.punct(':')?;
                    entries.push((name, self.literal(depth + 1)?));
                }
                self.punct('}')?;
                Literal::Object(entries)
            }
            _ => return Err(Undecodable),
        })
    }
}
