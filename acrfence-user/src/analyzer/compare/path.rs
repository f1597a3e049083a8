//! Where in a call a comparison stands.

use std::borrow::Cow;

use super::super::naming::Names;
use super::super::value::Value;

/// Entries of the map around a value.
pub(super) type Entries<'v> = [(Cow<'v, str>, Value<'v>)];

/// A place in a call: a chain up to the root.
#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    up: Option<&'p Path<'p>>,
    step: Step<'p>,
    /// The map that the value stands in, in both calls.
    around: Option<(&'p Entries<'p>, &'p Entries<'p>)>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    /// A part of the message (`body`, `headers`): shown, but no word of the field's name.
    Part(&'p str),
    Name(&'p str),
    Index(usize),
}

impl<'p> Path<'p> {
    /// A part of the message.
    pub fn part(name: &'p str) -> Self {
        Self {
            up: None,
            step: Step::Part(name),
            around: None,
        }
    }

    /// A part inside a part.
    pub fn part_of(name: &'p str, up: &'p Path<'p>) -> Self {
        Self {
            up: Some(up),
            step: Step::Part(name),
            around: None,
        }
    }

    /// A named value inside a map.
    pub fn name(
        &'p self,
        name: &'p str,
        around: Option<(&'p Entries<'p>, &'p Entries<'p>)>,
    ) -> Self {
        Self {
            up: Some(self),
            step: Step::Name(name),
            around,
        }
    }

    /// An element of a list.
    pub fn index(&'p self, index: usize) -> Self {
        Self {
            up: Some(self),
            step: Step::Index(index),
            around: self.around,
        }
    }

    /// The map around the value, in both calls.
    pub fn around(&self) -> Option<(&'p Entries<'p>, &'p Entries<'p>)> {
        self.around
    }

    /// A scalar that stands beside the value under one of these names, equal in both calls.
    pub fn beside(&self, names: &[&str]) -> Option<Cow<'p, str>> {
        let (one, two) = self.around?;
        let find = |entries: &'p Entries<'p>| {
            entries
                .iter()
                .find(|(n, _)| names.iter().any(|name| n.eq_ignore_ascii_case(name)))
                .and_then(|(_, v)| v.scalar())
        };
        let (a, b) = (find(one)?, find(two)?);
        (a == b).then_some(a)
    }

    /// Whether a part of this name is on the way.
    pub fn is_in(&self, part: &str) -> bool {
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Part(name) = path.step
                && name == part
            {
                return true;
            }
            at = path.up;
        }
        false
    }

    /// Whether it is exactly an element of this part's list (`url.path[2]`).
    pub fn is_element_of(&self, part: &str) -> bool {
        matches!(self.step, Step::Index(_))
            && self
                .up
                .is_some_and(|up| matches!(up.step, Step::Part(name) if name == part))
    }

    /// The innermost name, as written.
    pub fn last_name(&self) -> &'p str {
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Name(name) = path.step {
                return name;
            }
            at = path.up;
        }
        ""
    }

    /// The words of the names.
    pub fn names(&self) -> Names {
        let mut names = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Name(name) = path.step {
                names.push(name);
            }
            at = path.up;
        }
        names.reverse();
        Names::of_path(names.into_iter())
    }

    /// `body.items[2].amount`.
    pub fn show(&self) -> String {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            steps.push(path.step);
            at = path.up;
        }
        let mut out = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Part(name) | Step::Name(name) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    out.push_str(&super::super::value::shorten(name));
                }
                Step::Index(index) => out.push_str(&format!("[{index}]")),
            }
        }
        out
    }
}
