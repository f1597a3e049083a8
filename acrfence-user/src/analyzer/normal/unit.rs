//! Quantities with units: `8GiB` and `8192MiB`, `PT90M` and `1h30m`, `500m` of a processor.

use super::number::Decimal;

/// A quantity in the base unit of its dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::analyzer) struct Quantity {
    /// Which dimension, as a word.
    pub dimension: &'static str,
    /// Value in the base unit.
    pub value: Decimal,
}

/// Reads a number with a unit (`2.5 kg`, `90s`, `PT1H`, `1h30m`). `name` is the field's name in
/// words: it tells metres from minutes and from thousandths of a processor.
pub(in crate::analyzer) fn read(text: &str, name: &[String]) -> Option<Quantity> {
    let text = text.trim();
    if text.len() > 64 {
        return None;
    }
    if let Some(duration) = iso_duration(text) {
        return Some(duration);
    }
    let is_cpu = name.iter().any(|w| w.contains("cpu"));
    if is_cpu && !text.is_empty() {
        if let Some(milli) = text.strip_suffix('m') {
            return Some(Quantity {
                dimension: "processors",
                value: Decimal::read(milli)?.scaled(1, -3)?,
            });
        }
        if let Some(value) = Decimal::read(text) {
            return Some(Quantity {
                dimension: "processors",
                value,
            });
        }
    }
    if let Some(duration) = compound_duration(text) {
        return Some(duration);
    }
    let split = text.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c)))?;
    // `5e` is no exponent: the `e` belongs to the unit.
    let (number, unit) = match text[..split].strip_suffix(['e', 'E']) {
        Some(number) => (number, &text[number.len()..]),
        None => (&text[..split], &text[split..]),
    };
    with_unit(&Decimal::read(number.trim())?, unit.trim(), name)
}

/// A number under a unit that stands elsewhere (`{"value": 2.5, "unit": "kg"}`).
pub(in crate::analyzer) fn with_unit(
    number: &Decimal,
    unit: &str,
    name: &[String],
) -> Option<Quantity> {
    let says = |words: &[&str]| name.iter().any(|w| words.contains(&w.as_str()));
    // One letter alone means several things; only what the field is about tells which.
    let unit = match unit {
        "m" if says(TIME_WORDS) => "min",
        "m" if says(LENGTH_WORDS) => "metre",
        "m" => return None,
        "M" | "G" | "K" | "k" | "T" if says(STORAGE_WORDS) => {
            return storage_letter(number, unit);
        }
        other => other,
    };
    UNITS.iter().find_map(|(dimension, names, factor, power)| {
        let known = names
            .split(' ')
            .any(|n| n == unit || (n.len() > 3 && n.eq_ignore_ascii_case(unit)));
        known
            .then(|| {
                Some(Quantity {
                    dimension,
                    value: number.scaled(*factor, *power)?,
                })
            })
            .flatten()
    })
}

/// Whether a word names a unit (used for field names such as `timeout_ms`).
pub(in crate::analyzer) fn of_word(number: &Decimal, word: &str) -> Option<Quantity> {
    // In names only unambiguous words count; `m` and `h` do not.
    let unit = match word {
        "ms" | "millis" | "milliseconds" | "msec" => "ms",
        "s" | "sec" | "secs" | "seconds" => "s",
        "min" | "mins" | "minutes" => "min",
        "hours" | "hrs" => "hours",
        "days" => "days",
        "us" | "micros" | "microseconds" => return None,
        "kg" | "kilograms" => "kg",
        "g" | "grams" => "g",
        "mg" => "mg",
        "km" => "km",
        "cm" => "cm",
        "mm" => "mm",
        "metres" | "meters" => "metre",
        "bytes" => "bytes",
        "kb" => "kB",
        "mb" => "MB",
        "gb" => "GB",
        "kib" => "KiB",
        "mib" => "MiB",
        "gib" => "GiB",
        _ => return None,
    };
    with_unit(number, unit, &[])
}

fn storage_letter(number: &Decimal, letter: &str) -> Option<Quantity> {
    let power = match letter {
        "k" | "K" => 3,
        "M" => 6,
        "G" => 9,
        _ => 12,
    };
    Some(Quantity {
        dimension: "bytes",
        value: number.scaled(1, power)?,
    })
}

const TIME_WORDS: &[&str] = &[
    "timeout",
    "duration",
    "interval",
    "ttl",
    "delay",
    "backoff",
    "period",
    "age",
    "time",
    "window",
    "retention",
    "wait",
    "expiry",
    "lease",
];
const LENGTH_WORDS: &[&str] = &[
    "length",
    "height",
    "width",
    "depth",
    "distance",
    "radius",
    "altitude",
    "size",
    "elevation",
    "diameter",
];
const STORAGE_WORDS: &[&str] = &[
    "memory", "storage", "disk", "volume", "ram", "size", "capacity",
];

/// Dimension, unit names, factor and power of ten to the base unit. Names of up to three letters
/// keep their case (`Mb` is no `MB`).
const UNITS: &[(&str, &str, u64, i64)] = &[
    ("bytes", "B byte bytes", 1, 0),
    ("bytes", "kB KB kilobyte kilobytes", 1, 3),
    ("bytes", "MB megabyte megabytes", 1, 6),
    ("bytes", "GB gigabyte gigabytes", 1, 9),
    ("bytes", "TB terabyte terabytes", 1, 12),
    ("bytes", "PB petabyte petabytes", 1, 15),
    ("bytes", "KiB Ki kibibyte kibibytes", 1 << 10, 0),
    ("bytes", "MiB Mi mebibyte mebibytes", 1 << 20, 0),
    ("bytes", "GiB Gi gibibyte gibibytes", 1 << 30, 0),
    ("bytes", "TiB Ti tebibyte tebibytes", 1 << 40, 0),
    ("bits per second", "bps bit/s", 1, 0),
    ("bits per second", "kbps kbit/s Kbps", 1, 3),
    ("bits per second", "Mbps Mbit/s", 1, 6),
    ("bits per second", "Gbps Gbit/s", 1, 9),
    ("time", "ns nanosecond nanoseconds", 1, -9),
    ("time", "us µs μs microsecond microseconds", 1, -6),
    ("time", "ms msec millis millisecond milliseconds", 1, -3),
    ("time", "s sec secs second seconds", 1, 0),
    ("time", "min mins minute minutes", 60, 0),
    ("time", "h hr hrs hour hours", 3600, 0),
    ("time", "d day days", 86_400, 0),
    ("time", "w week weeks", 604_800, 0),
    ("mass", "µg ug mcg μg microgram micrograms", 1, -6),
    ("mass", "mg milligram milligrams", 1, -3),
    ("mass", "g gr gram grams gramme", 1, 0),
    ("mass", "kg kgs KG kilo kilos kilogram kilograms KGM", 1, 3),
    ("mass", "t tonne tonnes", 1, 6),
    ("avoirdupois mass", "oz ounce ounces", 1, 0),
    ("avoirdupois mass", "lb lbs LB pound pounds LBR", 16, 0),
    (
        "length",
        "mm millimetre millimetres millimeter millimeters MMT",
        1,
        -3,
    ),
    (
        "length",
        "cm CM centimetre centimetres centimeter centimeters CMT",
        1,
        -2,
    ),
    ("length", "metre metres meter meters MTR", 1, 0),
    (
        "length",
        "km kilometre kilometres kilometer kilometers KMT",
        1,
        3,
    ),
    ("imperial length", "in inch inches", 1, 0),
    ("imperial length", "ft foot feet", 12, 0),
    ("imperial length", "yd yard yards", 36, 0),
    ("imperial length", "mi mile miles", 63_360, 0),
    (
        "volume",
        "ml mL millilitre millilitres milliliter milliliters",
        1,
        -3,
    ),
    ("volume", "cl centilitre centilitres", 1, -2),
    ("volume", "dl decilitre decilitres", 1, -1),
    ("volume", "l L litre litres liter liters LTR", 1, 0),
    ("volume", "hl hectolitre hectolitres", 1, 2),
    ("frequency", "Hz hertz", 1, 0),
    ("frequency", "kHz kilohertz", 1, 3),
    ("frequency", "MHz megahertz", 1, 6),
    ("frequency", "GHz gigahertz", 1, 9),
    ("power", "mW milliwatt", 1, -3),
    ("power", "W watt watts", 1, 0),
    ("power", "kW kilowatt kilowatts", 1, 3),
    ("power", "MW megawatt", 1, 6),
    ("energy", "Wh", 1, 0),
    ("energy", "kWh", 1, 3),
    ("energy", "MWh", 1, 6),
    ("money", "cent cents", 1, -2),
    ("pressure", "hPa mbar", 1, 0),
    ("pressure", "bar", 1, 3),
];

/// `PT1H30M`, `P2DT3S`. Years and months have no fixed length and are not read.
fn iso_duration(text: &str) -> Option<Quantity> {
    let rest = text.strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((days, time)) if !time.is_empty() => (days, time),
        None if !rest.is_empty() => (rest, ""),
        _ => return None,
    };
    let mut total = Decimal::read("0")?;
    for (part, letters) in [(days, "WD"), (time, "HMS")] {
        let mut rest = part;
        while !rest.is_empty() {
            let at = rest.find(|c: char| c.is_ascii_alphabetic())?;
            let letter = rest[at..].chars().next().filter(|c| letters.contains(*c))?;
            let factor = match letter {
                'W' => 604_800,
                'D' => 86_400,
                'H' => 3600,
                'M' => 60,
                _ => 1,
            };
            let value = Decimal::read(&rest[..at].replace(',', "."))?.scaled(factor, 0)?;
            total = total.plus(&value)?;
            rest = &rest[at + 1..];
        }
    }
    Some(Quantity {
        dimension: "time",
        value: total,
    })
}

/// `1h30m`, `2h 5m 10s`, `1m30s`: at least two parts, so that `m` can only be minutes.
fn compound_duration(text: &str) -> Option<Quantity> {
    let mut rest = text;
    let mut total = Decimal::read("0")?;
    let mut parts = 0;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        rest = rest.trim_start();
        let at = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number = Decimal::read(&rest[..at])?;
        rest = rest[at..].trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let factor = match &rest[..end] {
            "d" => 86_400,
            "h" | "hr" => 3600,
            "m" | "min" => 60,
            "s" | "sec" => 1,
            _ => return None,
        };
        if factor >= last {
            return None;
        }
        last = factor;
        total = total.plus(&number.scaled(factor, 0)?)?;
        parts += 1;
        rest = &rest[end..];
    }
    (parts >= 2).then_some(Quantity {
        dimension: "time",
        value: total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str, name: &str) -> Option<Quantity> {
        let name: Vec<String> = name.split(' ').map(str::to_owned).collect();
        read(text, &name)
    }

    #[test]
    fn equal_quantities() {
        for (one, two, name) in [
            ("8GiB", "8192MiB", "memory"),
            ("2Gi", "2048Mi", "memory"),
            ("90s", "90.000s", "backoff"),
            ("PT90M", "PT1H30M", "window"),
            ("1h30m", "PT90M", "window"),
            ("500m", "0.5", "cpu"),
            ("0.5 g", "500mg", "dose"),
            ("120 cm", "1.2m", "length"),
            ("2 minutes", "120 s", "delay"),
            ("5m", "300s", "timeout"),
        ] {
            assert_eq!(q(one, name), q(two, name), "{one} {two}");
            assert!(q(one, name).is_some(), "{one}");
        }
        for (one, two, name) in [
            ("5GB", "5TB", "disk"),
            ("5GB", "5GiB", "disk"),
            ("9 kg", "9 lb", "weight"),
            ("5Mb", "5MB", "x"),
            ("1 h", "1 d", "ttl"),
        ] {
            assert!(
                q(one, name) != q(two, name) || q(one, name).is_none(),
                "{one} {two}"
            );
        }
        for unclear in [
            "5m", "20C", "5%", "abc", "12", "1.2.3", "5 apples", "P1M", "1m2m", "",
        ] {
            assert!(q(unclear, "value").is_none(), "{unclear}");
        }
    }
}
