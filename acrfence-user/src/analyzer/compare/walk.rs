//! Down two trees at once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::super::decode::{self, graphql, sql};
use super::super::naming::{self, Deed};
use super::super::normal::number::Decimal;
use super::super::normal::unit;
use super::super::value::Value;
use super::Found;
use super::context::Context;
use super::path::{Entries, Path};
use crate::words::FieldClass::{self, Intent, Unknown, Volatile};

/// Most steps of one comparison; hostile input must not take longer.
const MOST_STEPS: usize = 400_000;

/// So many differences of intent decide; what comes after them changes nothing.
const ENOUGH: usize = 64;

/// Down two trees at once, collecting differences.
pub(super) struct Walk<'c> {
    pub context: &'c Context<'c>,
    found: Vec<Found>,
    steps: usize,
    exhausted: bool,
    /// Differences of intent that are certain (not in a comparison aside).
    decided: usize,
    aside: usize,
    /// Differences that count, in the comparison at hand.
    counted: usize,
    /// Encodings that may still be opened.
    pub depth: usize,
    /// Whether the part being compared makes something new (an SQL INSERT, a GraphQL `create…`).
    pub creating: Option<bool>,
    /// Whether the part being compared is the payload of a token.
    pub in_token: bool,
}

impl<'c> Walk<'c> {
    pub fn new(context: &'c Context<'c>) -> Self {
        Self {
            context,
            found: Vec::new(),
            steps: MOST_STEPS,
            exhausted: false,
            decided: 0,
            aside: 0,
            counted: 0,
            depth: decode::DEEPEST,
            creating: None,
            in_token: false,
        }
    }

    pub fn finish(mut self) -> Vec<Found> {
        if self.exhausted {
            self.found.push(Found {
                path: String::new(),
                class: Unknown,
                reason: "too large to compare completely".into(),
                recorded: None,
                restored: None,
                texts: None,
                ids: None,
                made_anew: false,
            });
        }
        self.found
    }

    /// What the call (or the statement in it) does.
    pub fn deed(&self) -> Deed {
        match self.creating {
            Some(true) => Deed::Create,
            Some(false) => Deed::Update,
            None => self.context.deed(),
        }
    }

    /// Notes a difference.
    pub fn found(
        &mut self,
        path: &Path<'_>,
        class: FieldClass,
        reason: impl Into<Cow<'static, str>>,
        one: &Value<'_>,
        two: &Value<'_>,
    ) {
        self.one_sided(path, class, reason, Some(one), Some(two));
    }

    /// Notes a difference where a value may be missing.
    pub fn one_sided(
        &mut self,
        path: &Path<'_>,
        class: FieldClass,
        reason: impl Into<Cow<'static, str>>,
        one: Option<&Value<'_>>,
        two: Option<&Value<'_>>,
    ) {
        // Enough is enough, but a difference that decides is never dropped.
        if self.found.len() >= 2000 && class == Volatile {
            return;
        }
        if self.found.len() >= 4000 {
            self.exhausted = true;
            return;
        }
        self.push(Found {
            path: path.show(),
            class,
            reason: reason.into(),
            recorded: one.map(Value::show),
            restored: two.map(Value::show),
            texts: None,
            ids: None,
            made_anew: false,
        });
    }

    pub fn push(&mut self, found: Found) {
        self.count(found.class);
        self.found.push(found);
    }

    fn count(&mut self, class: FieldClass) {
        self.counted += usize::from(class != Volatile);
        if class == Intent && self.aside == 0 {
            self.decided += 1;
        }
    }

    /// Whether enough differences are known.
    fn enough(&self) -> bool {
        self.decided >= ENOUGH
    }

    /// Runs a comparison aside and gives what it found.
    pub fn aside(&mut self, run: impl FnOnce(&mut Self)) -> Vec<Found> {
        let kept = std::mem::take(&mut self.found);
        let counted = std::mem::take(&mut self.counted);
        self.aside += 1;
        run(self);
        self.aside -= 1;
        self.counted = counted;
        std::mem::replace(&mut self.found, kept)
    }

    pub fn extend(&mut self, found: Vec<Found>) {
        found.iter().for_each(|f| self.count(f.class));
        self.found.extend(found);
    }

    fn step(&mut self) -> bool {
        let aside = self.aside > 0 && self.counted >= ENOUGH;
        if self.enough() || aside {
            return false;
        }
        if self.steps == 0 {
            self.exhausted = true;
            return false;
        }
        self.steps -= 1;
        true
    }

    /// Compares two values at the same place.
    pub fn value(&mut self, path: &Path<'_>, one: &Value<'_>, two: &Value<'_>) {
        if !self.step() {
            return;
        }
        match (one, two) {
            (Value::Map(a), Value::Map(b)) => self.maps(path, a, b),
            (Value::List(a), Value::List(b)) => self.lists(path, a, b),
            (Value::Map(_) | Value::List(_), _) | (_, Value::Map(_) | Value::List(_)) => {
                self.mismatch(path, one, two);
            }
            _ if one == two => {}
            _ => self.leaf(path, one, two),
        }
    }

    /// A list or object against something else.
    fn mismatch(&mut self, path: &Path<'_>, one: &Value<'_>, two: &Value<'_>) {
        let single = |list: &Value<'_>, other: &Value<'_>| matches!(list, Value::List(items) if items.len() == 1 && items[0] == *other);
        if single(one, two) || single(two, one) {
            let class = if path.names().is_set() {
                Volatile
            } else {
                Unknown
            };
            self.found(
                path,
                class,
                "one value, alone and as a list of one",
                one,
                two,
            );
            return;
        }
        if one.is_empty() && two.is_empty() && self.deed() != Deed::Update {
            self.found(path, Volatile, "nothing, written in two ways", one, two);
            return;
        }
        // JSON as text against the same JSON as an object: some servers take both.
        let (text, tree) = match (one, two) {
            (Value::Text(text), tree) | (tree, Value::Text(text)) => (text, tree),
            _ => {
                self.found(path, Intent, "another kind of value", one, two);
                return;
            }
        };
        let same = decode::json::read(text).is_ok_and(|read| {
            self.aside(|w| w.value(path, &read, tree))
                .iter()
                .all(|f| f.class == Volatile)
        });
        if same {
            self.found(
                path,
                Unknown,
                "the same JSON, as text and as an object",
                one,
                two,
            );
        } else {
            self.found(path, Intent, "another kind of value", one, two);
        }
    }

    fn maps(&mut self, path: &Path<'_>, one: &Entries<'_>, two: &Entries<'_>) {
        if one == two {
            return;
        }
        if let (Some(Value::Map(a)), Some(Value::Map(b))) = (special(one), special(two)) {
            self.statements(path, &a, &b);
        } else {
            self.statements(path, one, two);
        }
    }

    /// Rows of an SQL INSERT are things that the call makes.
    fn statements(&mut self, path: &Path<'_>, one: &Entries<'_>, two: &Entries<'_>) {
        let before = self.creating;
        match (is_insert(one), is_insert(two)) {
            (Some(a), Some(b)) => self.creating = Some(a && b),
            (None, None) => {}
            _ => self.creating = Some(false),
        }
        self.plain_maps(path, one, two);
        self.creating = before;
    }

    fn plain_maps(&mut self, path: &Path<'_>, one: &Entries<'_>, two: &Entries<'_>) {
        let around = Some((one, two));
        let quantity = self.quantity(path, one, two);
        let in_quantity = |name: &str| {
            quantity
                .as_ref()
                .is_some_and(|(v, u)| name == v || name == u)
        };
        let is_rpc = |entries: &Entries<'_>| entries.iter().any(|(n, _)| n == "jsonrpc");
        let rpc = is_rpc(one) && is_rpc(two);
        let mut used = vec![false; two.len()];
        let index = (two.len() > 24).then(|| {
            let mut index: HashMap<&str, Vec<usize>> = HashMap::new();
            for (i, (name, _)) in two.iter().enumerate().rev() {
                index.entry(name.as_ref()).or_default().push(i);
            }
            index
        });
        let mut index = index;
        let mut left = Vec::new();
        for (i, (name, a)) in one.iter().enumerate() {
            let at = if two.get(i).is_some_and(|(n, _)| n == name) && !used[i] && index.is_none() {
                Some(i)
            } else {
                match &mut index {
                    Some(index) => index.get_mut(name.as_ref()).and_then(Vec::pop),
                    None => two
                        .iter()
                        .enumerate()
                        .position(|(j, (n, _))| n == name && !used[j]),
                }
            };
            let Some(at) = at else {
                left.push((name, a));
                continue;
            };
            used[at] = true;
            let b = &two[at].1;
            if in_quantity(name) {
                continue;
            }
            if a == b {
                // Equal as written; the most common case.
                if !self.step() {
                    return;
                }
                continue;
            }
            let inner = path.name(name, around);
            if rpc && name == "id" {
                self.found(
                    &inner,
                    Volatile,
                    "the id of a JSON-RPC request ties the answer to it",
                    a,
                    b,
                );
                continue;
            }
            if name == graphql::SELECTION {
                // What is done stands in the arguments; a field without any, or arguments further in,
                // may be a group of operations.
                let plain = |v: &Value<'_>| v.scalar().is_some_and(|t| !t.contains(['(', '@']));
                if one.len() > 1 && plain(a) && plain(b) {
                    self.found(
                        &inner,
                        Volatile,
                        "asks for other fields back; what is done is the same",
                        a,
                        b,
                    );
                } else {
                    self.found(
                        &inner,
                        Intent,
                        "asks for other fields, which may be what is done",
                        a,
                        b,
                    );
                }
                continue;
            }
            self.value(&inner, a, b);
        }
        let mut right: Vec<(&Cow<'_, str>, &Value<'_>)> = two
            .iter()
            .zip(&used)
            .filter(|(_, used)| !**used)
            .map(|((name, value), _)| (name, value))
            .collect();
        if left.is_empty() && right.is_empty() {
            return;
        }
        if !left.is_empty() && !right.is_empty() {
            left.retain(|(name, a)| !self.respelled(path, around, name, a, &mut right));
        }
        let repeated = |entries: &Entries<'_>| -> HashSet<String> {
            let mut seen = HashSet::new();
            entries
                .iter()
                .filter(|(n, _)| !seen.insert(n.as_ref()))
                .map(|(n, _)| n.to_string())
                .collect()
        };
        let (twice_one, twice_two) = (repeated(one), repeated(two));
        for (name, a) in left {
            if self.enough() {
                return;
            }
            self.missing(
                &path.name(name, around),
                Some(a),
                None,
                twice_one.contains(name.as_ref()),
            );
        }
        for (name, b) in right {
            if self.enough() {
                return;
            }
            self.missing(
                &path.name(name, around),
                None,
                Some(b),
                twice_two.contains(name.as_ref()),
            );
        }
    }

    /// A name that is only spelled in another way, or with its unit in it.
    fn respelled(
        &mut self,
        path: &Path<'_>,
        around: Option<(&Entries<'_>, &Entries<'_>)>,
        name: &str,
        a: &Value<'_>,
        right: &mut Vec<(&Cow<'_, str>, &Value<'_>)>,
    ) -> bool {
        let words = naming::words(name);
        let of = |other: &str| naming::words(other);
        if let Some(at) = right.iter().position(|(n, _)| of(n) == words) {
            let alone = right.iter().filter(|(n, _)| of(n) == words).count() == 1;
            if alone {
                let (other, b) = right.remove(at);
                let inner = match around {
                    Some((one, two)) => path.name(name, Some((one, two))),
                    None => path.name(name, None),
                };
                let headers = path.is_in("headers");
                if !headers && !self.context.takes_either_case() {
                    self.found(
                        &inner,
                        Unknown,
                        "the name is spelled in another way, and nothing says that both are taken",
                        &Value::text(format!("{name}: {}", a.show())),
                        &Value::text(format!("{other}: {}", b.show())),
                    );
                }
                self.value(&inner, a, b);
                return true;
            }
        }
        // `timeout_ms: 30000` and `timeout_s: 30`.
        let quantity =
            |words: &[String], value: &Value<'_>| -> Option<(Vec<String>, unit::Quantity)> {
                let (last, stem) = words.split_last()?;
                let number = match value {
                    Value::Number(text) | Value::Text(text) => Decimal::read(text)?,
                    _ => return None,
                };
                Some((stem.to_vec(), unit::of_word(&number, last)?))
            };
        if let Some((stem, mine)) = quantity(&words, a)
            && !stem.is_empty()
            && let Some(at) = right.iter().position(|(n, b)| {
                quantity(&of(n), b).is_some_and(|(other, theirs)| other == stem && theirs == mine)
            })
        {
            let (other, b) = right.remove(at);
            let inner = path.name(name, None);
            self.found(
                &inner,
                Volatile,
                "the same quantity, under a name with another unit",
                &Value::text(format!("{name}: {}", a.show())),
                &Value::text(format!("{other}: {}", b.show())),
            );
            return true;
        }
        false
    }

    /// `{"value": 2.5, "unit": "kg"}` against `{"value": 2500, "unit": "g"}`: the names of both
    /// entries, where the quantity is the same.
    fn quantity(
        &mut self,
        path: &Path<'_>,
        one: &Entries<'_>,
        two: &Entries<'_>,
    ) -> Option<(String, String)> {
        const UNITS: &[&str] = &[
            "unit",
            "units",
            "uom",
            "unitcode",
            "unitofmeasure",
            "measure",
            "unitofmeasurement",
        ];
        const VALUES: &[&str] = &[
            "value",
            "amount",
            "quantity",
            "qty",
            "number",
            "magnitude",
            "size",
        ];
        // Nearly no object is a quantity; words are only made of names that could name a unit.
        let may_be = |entries: &Entries<'_>| {
            entries.iter().any(|(n, _)| {
                n.len() <= 24
                    && ["unit", "Unit", "UNIT", "uom", "UOM", "easure"]
                        .iter()
                        .any(|part| n.contains(part))
            })
        };
        if !may_be(one) || !may_be(two) {
            return None;
        }
        let find = |entries: &Entries<'_>, list: &[&str]| {
            entries
                .iter()
                .find(|(n, v)| {
                    v.scalar().is_some() && list.contains(&naming::words(n).concat().as_str())
                })
                .map(|(n, v)| (n.to_string(), v.scalar().unwrap_or_default().into_owned()))
        };
        let (unit_name, unit_a) = find(one, UNITS)?;
        let (other_unit, unit_b) = find(two, UNITS)?;
        if unit_a == unit_b || unit_name != other_unit {
            return None;
        }
        let (value_name, value_a) = find(one, VALUES)?;
        let (other_value, value_b) = find(two, VALUES)?;
        if value_name != other_value {
            return None;
        }
        let names = path.names();
        let mut words = names.own.clone();
        words.extend(names.within);
        let read = |value: &str, unit: &str| unit::with_unit(&Decimal::read(value)?, unit, &words);
        let (a, b) = (read(&value_a, &unit_a)?, read(&value_b, &unit_b)?);
        if a != b {
            return None;
        }
        self.found(
            path,
            Volatile,
            "the same quantity in another unit",
            &Value::text(format!("{value_a} {unit_a}")),
            &Value::text(format!("{value_b} {unit_b}")),
        );
        Some((value_name, unit_name))
    }
}

/// Whether a statement of SQL inserts; none where it is no statement.
fn is_insert(entries: &Entries<'_>) -> Option<bool> {
    entries.iter().find_map(|(name, value)| match value {
        Value::Code(text) if name == "statement" => Some(text.starts_with("insert")),
        _ => None,
    })
}

/// Objects that are a program with its values: a GraphQL request, SQL with parameters.
fn special<'v>(entries: &'v Entries<'v>) -> Option<Value<'static>> {
    let get = |names: &[&str]| {
        entries
            .iter()
            .find(|(n, _)| names.iter().any(|name| n.eq_ignore_ascii_case(name)))
    };
    if let Some((name, Value::Text(document))) = get(&["query", "mutation", "document"])
        && graphql::looks_like(document)
    {
        let parsed;
        let variables = match get(&["variables"]) {
            Some((_, Value::Text(text))) => {
                parsed = decode::json::read(text).ok()?;
                Some(&parsed)
            }
            Some((_, value)) => Some(value),
            None => None,
        };
        let operation = get(&["operationName", "operation_name"]).and_then(|(_, v)| v.as_text());
        let tree = graphql::read(document, variables, operation).ok()?;
        let mut out: Vec<(Cow<'static, str>, Value<'static>)> =
            vec![(Cow::Owned(name.to_string()), tree)];
        for (other, value) in entries {
            let part = ["variables", "operationname", "operation_name"];
            if other != name && !part.iter().any(|p| other.eq_ignore_ascii_case(p)) {
                out.push((Cow::Owned(other.to_string()), value.clone().into_owned()));
            }
        }
        return Some(Value::Map(out));
    }
    if let Some((name, Value::Text(statement))) =
        get(&["sql", "query", "statement", "text", "command"])
        && let Some((list_name, Value::List(values))) =
            get(&["params", "parameters", "values", "args", "bindings"])
        && sql::looks_like(statement)
    {
        let tree = sql::read_with_parameters(statement, values).ok()?;
        let Value::Map(mut out) = tree else {
            return None;
        };
        for (other, value) in entries {
            if other != name && other != list_name {
                out.push((Cow::Owned(other.to_string()), value.clone().into_owned()));
            }
        }
        return Some(Value::Map(out));
    }
    None
}
