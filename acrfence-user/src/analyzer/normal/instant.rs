//! Points in time, however they are written.

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::analyzer) struct Instant {
    /// Nanoseconds since 1970, as if a missing zone were UTC.
    pub nanos: i128,
    /// Whether the text says which zone it means (or is a count since 1970).
    pub zoned: bool,
    /// How exact it is: one of its last written unit, in nanoseconds.
    pub step: i128,
}

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

/// Reads a date with a time of day, or a count of seconds, milli-, micro- or nanoseconds since 1970.
pub(in crate::analyzer) fn read(text: &str) -> Option<Instant> {
    let text = text.trim();
    if !text.is_ascii() || text.len() < 10 || text.len() > 64 {
        return None;
    }
    epoch(text)
        .or_else(|| iso(text))
        .or_else(|| compact(text))
        .or_else(|| mail(text))
}

/// Reads a date alone (`2032-03-04`, `20320304`): days since 1970.
pub(in crate::analyzer) fn date(text: &str) -> Option<i64> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| number(bytes.get(range)?);
    let (year, month, day) = match bytes.len() {
        10 if bytes[4] == b'-' && bytes[7] == b'-' => {
            (digits(0..4)?, digits(5..7)?, digits(8..10)?)
        }
        8 => (digits(0..4)?, digits(4..6)?, digits(6..8)?),
        _ => return None,
    };
    plausible(year, month, day).then(|| days(year, month, day))
}

/// Whether text means "now" to the program that reads it.
pub(in crate::analyzer) fn says_now(text: &str) -> bool {
    matches!(
        text.trim().to_ascii_lowercase().as_str(),
        "now()"
            | "now"
            | "current_timestamp"
            | "current_timestamp()"
            | "localtimestamp"
            | "getdate()"
            | "sysdate"
            | "utc_timestamp()"
            | "clock_timestamp()"
            | "{{now}}"
    )
}

fn epoch(text: &str) -> Option<Instant> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() && fraction.len() <= 9 => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    if !whole.bytes().all(|b| b.is_ascii_digit()) || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let unit: i128 = match whole.len() {
        10 => SECOND,
        13 => 1_000_000,
        16 => 1_000,
        19 => 1,
        _ => return None,
    };
    let mut nanos = whole.parse::<i128>().ok()? * unit;
    let mut step = unit;
    if !fraction.is_empty() {
        step = unit / 10_i128.pow(fraction.len().min(9) as u32);
        nanos += fraction.parse::<i128>().ok()? * step;
    }
    // 2001 to 2100: other ten-digit numbers are phone numbers and ids.
    (1_000_000_000 * SECOND..4_102_444_800 * SECOND)
        .contains(&nanos)
        .then_some(Instant {
            nanos,
            zoned: true,
            step: step.max(1),
        })
}

fn iso(text: &str) -> Option<Instant> {
    let bytes = text.as_bytes();
    if bytes.len() < 16
        || bytes[4] != b'-'
        || bytes[7] != b'-'
        || !matches!(bytes[10], b'T' | b't' | b' ' | b'_')
    {
        return None;
    }
    let day = date(text.get(..10)?)?;
    clock(&text[11..], ":").map(|(of_day, zone, step)| at(day, of_day, zone, step))
}

/// `20320304T085959Z`, `20320304085959`.
fn compact(text: &str) -> Option<Instant> {
    let bytes = text.as_bytes();
    let day = date(text.get(..8)?)?;
    let rest = match bytes.get(8)? {
        b'T' => &text[9..],
        b'0'..=b'2' => &text[8..],
        _ => return None,
    };
    if rest.len() < 4 {
        return None;
    }
    clock(rest, "").map(|(of_day, zone, step)| at(day, of_day, zone, step))
}

/// `Thu, 04 Mar 2032 09:00:00 +0000`, as mail and HTTP write it.
fn mail(text: &str) -> Option<Instant> {
    let text = match text.split_once(", ") {
        Some((weekday, rest)) if weekday.len() <= 9 => rest,
        _ => text,
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [day, month, year, time, zone @ ..] = words.as_slice() else {
        return None;
    };
    let month = [
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ]
    .iter()
    .position(|m| month.to_ascii_lowercase().starts_with(m))? as i64
        + 1;
    let (year, day) = (number(year.as_bytes())?, number(day.as_bytes())?);
    if !plausible(year, month, day) {
        return None;
    }
    let zone = match zone.first().copied() {
        None => "",
        Some("GMT" | "UTC" | "UT" | "Z") => "Z",
        Some(zone) => zone,
    };
    clock(&format!("{time}{zone}"), ":")
        .map(|(of_day, zone, step)| at(days(year, month, day), of_day, zone, step))
}

fn at(day: i64, of_day: i128, zone: Option<i128>, step: i128) -> Instant {
    Instant {
        nanos: i128::from(day) * DAY + of_day - zone.unwrap_or(0),
        zoned: zone.is_some(),
        step,
    }
}

/// Time of day, zone offset (both in nanoseconds) and exactness.
fn clock(text: &str, separator: &str) -> Option<(i128, Option<i128>, i128)> {
    let mut rest = text;
    let mut two = |first: bool| -> Option<i64> {
        if !first {
            rest = rest.strip_prefix(separator)?;
        }
        let value = number(rest.as_bytes().get(..2)?)?;
        rest = &rest[2..];
        Some(value)
    };
    let hour = two(true)?;
    let minute = two(false)?;
    let (second, mut step) = match two(false) {
        Some(second) => (second, SECOND),
        None => (0, 60 * SECOND),
    };
    if hour > 24 || minute > 59 || second > 60 {
        return None;
    }
    let mut of_day = i128::from(hour * 3600 + minute * 60 + second) * SECOND;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let end = fraction
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(fraction.len());
        if end == 0 || end > 9 {
            return None;
        }
        step = SECOND / 10_i128.pow(end as u32);
        of_day += fraction[..end].parse::<i128>().ok()? * step;
        rest = &fraction[end..];
    }
    Some((of_day, zone(rest.trim())?, step))
}

/// `Z`, `+01:00`, `+0100`, `+00`, `UTC`, or nothing.
fn zone(text: &str) -> Option<Option<i128>> {
    match text {
        "" => return Some(None),
        "Z" | "z" | "UTC" | "GMT" => return Some(Some(0)),
        _ => {}
    }
    let (sign, rest) = match text.as_bytes()[0] {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = match digits.len() {
        2 => (number(digits.as_bytes())?, 0),
        4 => (
            number(&digits.as_bytes()[..2])?,
            number(&digits.as_bytes()[2..])?,
        ),
        _ => return None,
    };
    (hours <= 15 && minutes <= 59)
        .then(|| Some(sign * i128::from(hours * 3600 + minutes * 60) * SECOND))
}

fn number(bytes: &[u8]) -> Option<i64> {
    if bytes.is_empty() || bytes.len() > 4 {
        return None;
    }
    bytes.iter().try_fold(0, |sum, b| {
        b.is_ascii_digit().then(|| sum * 10 + i64::from(b - b'0'))
    })
}

fn plausible(year: i64, month: i64, day: i64) -> bool {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1970..2200).contains(&year) && (1..=last).contains(&day)
}

/// Days since 1970 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Count years from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let before_month = (153 * month + 2) / 5;
    year * 365 + year / 4 - year / 100 + year / 400 + before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_usual_form() {
        let wanted = read("2032-03-04T09:00:00Z").unwrap().nanos;
        for same in [
            "2032-03-04T10:00:00+01:00",
            "2032-03-04 09:00:00+00",
            "2032-03-04 09:00:00",
            "2032-03-04T09:00:00.000Z",
            "20320304T090000Z",
            "20320304090000",
            "Thu, 04 Mar 2032 09:00:00 +0000",
            "4 Mar 2032 09:00:00 GMT",
            "1962003600",
            "1962003600000",
            "1962003600.000",
            "2032-03-04T09:00Z",
        ] {
            assert_eq!(read(same).map(|i| i.nanos), Some(wanted), "{same}");
        }
        assert_eq!(read("1970-01-02T00:00:00Z").unwrap().nanos, DAY);
        assert!(!read("2032-03-04 09:00:00").unwrap().zoned);
    }

    #[test]
    fn reads_nothing_else_as_time() {
        for bad in [
            "2032-13-04T09:00:00Z",
            "2032-02-30T09:00:00Z",
            "+15550100144",
            "15550100144",
            "0000000001",
            "9999999999",
            "2032-03-04",
            "hello world",
            "12345678901234567890",
            "2032-03-04T25:00:00Z",
            "2032-03-04T09:00:00+99:00",
            "a1b2c3d4-e5f6-7890-g1h2-i3j4k5l6m7n8",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert!(date("2032-03-04").is_some());
        assert!(date("2032-02-30").is_none());
    }
}
