//! Numbers by value, exactly.

use std::fmt;

/// A decimal number: `digits × 10^exponent`, without zeros at either end of the digits. Compares by
/// value, and never needs to be written out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::analyzer) struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

/// Longest text that is read as a number.
const MOST_CHARACTERS: usize = 400;

impl Decimal {
    /// Reads `-12.50`, `1e3`, `+7`, `.5`; nothing else around it.
    pub fn read(text: &str) -> Option<Self> {
        if text.len() > MOST_CHARACTERS {
            return None;
        }
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => {
                let exponent = &rest[at + 1..];
                let bare = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if bare.is_empty() || bare.len() > 9 || !bare.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                (&rest[..at], exponent.parse().ok()?)
            }
            None => (rest, 0_i64),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, fraction),
            None => (mantissa, ""),
        };
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction)
        {
            return None;
        }
        Some(Self::new(negative, whole, fraction, exponent))
    }

    /// Multiplies by `factor × 10^power`.
    pub fn scaled(&self, factor: u64, power: i64) -> Option<Self> {
        let value: u128 = if self.digits.is_empty() {
            0
        } else {
            self.digits.parse().ok()?
        };
        let product = value.checked_mul(u128::from(factor))?.to_string();
        Some(Self::new(
            self.negative,
            &product,
            "",
            self.exponent.checked_add(power)?,
        ))
    }

    /// Sum, where both fit.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let exponent = self.exponent.min(other.exponent);
        let lift = |d: &Self| -> Option<i128> {
            let value: i128 = if d.digits.is_empty() {
                0
            } else {
                d.digits.parse().ok()?
            };
            let power = u32::try_from(d.exponent - exponent).ok()?;
            let value = value.checked_mul(10_i128.checked_pow(power)?)?;
            Some(if d.negative { -value } else { value })
        };
        let sum = lift(self)?.checked_add(lift(other)?)?;
        Some(Self::new(
            sum < 0,
            &sum.unsigned_abs().to_string(),
            "",
            exponent,
        ))
    }

    /// The value as a whole number, where it is one and fits.
    pub fn integer(&self) -> Option<i128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let power = u32::try_from(self.exponent).ok().filter(|p| *p <= 30)?;
        let value: i128 = self.digits.parse().ok()?;
        let value = value.checked_mul(10_i128.checked_pow(power)?)?;
        Some(if self.negative { -value } else { value })
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    fn new(negative: bool, whole: &str, fraction: &str, exponent: i64) -> Self {
        let all = format!("{whole}{fraction}");
        let shift = i64::try_from(fraction.len()).unwrap_or(0);
        let trimmed = all.trim_end_matches('0');
        let tail = i64::try_from(all.len() - trimmed.len()).unwrap_or(0);
        let digits = trimmed.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Self {
                negative: false,
                digits,
                exponent: 0,
            };
        }
        Self {
            negative,
            digits,
            exponent: exponent - shift + tail,
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.digits.is_empty() {
            return f.write_str("0");
        }
        if self.negative {
            f.write_str("-")?;
        }
        let length = i64::try_from(self.digits.len()).unwrap_or(i64::MAX);
        if (0..=30).contains(&self.exponent) {
            f.write_str(&self.digits)?;
            (0..self.exponent).try_for_each(|_| f.write_str("0"))
        } else if self.exponent < 0 && -self.exponent < length {
            let at = usize::try_from(length + self.exponent).unwrap_or(0);
            write!(f, "{}.{}", &self.digits[..at], &self.digits[at..])
        } else if (-30..0).contains(&self.exponent) {
            f.write_str("0.")?;
            (0..(-self.exponent - length)).try_for_each(|_| f.write_str("0"))?;
            f.write_str(&self.digits)
        } else {
            write!(f, "{}e{}", self.digits, self.exponent)
        }
    }
}

/// Whether text is a whole number in its only usual spelling: no sign but `-`, no leading zero.
pub(in crate::analyzer) fn is_canonical_integer(text: &str) -> bool {
    let bare = text.strip_prefix('-').unwrap_or(text);
    !bare.is_empty()
        && bare.bytes().all(|b| b.is_ascii_digit())
        && (bare == "0" || !bare.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn d(text: &str) -> Decimal {
        Decimal::read(text).unwrap()
    }

    #[test]
    fn equal_by_value() {
        for (one, two) in [
            ("1200", "1200.0"),
            ("1e3", "1000"),
            ("0.10", "1E-1"),
            ("-0", "0.00"),
            ("+7", "7"),
            (".5", "0.5"),
            ("1e999999999", "10e999999998"),
        ] {
            assert_eq!(d(one), d(two), "{one} {two}");
        }
        for (one, two) in [
            ("12", "1.2"),
            ("1234567890123456789", "1234567890123456788"),
            ("-1", "1"),
        ] {
            assert_ne!(d(one), d(two));
        }
        for bad in [
            "",
            ".",
            "1,2",
            "0x10",
            "1e",
            "e1",
            "NaN",
            "1.2.3",
            " 1",
            "1_000",
            "1e9999999999",
            "٣",
        ] {
            assert!(Decimal::read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn scales_and_adds() {
        assert_eq!(d("2.5").scaled(1, 3), Some(d("2500")));
        assert_eq!(d("8").scaled(1024, 0), Some(d("8192")));
        assert_eq!(d("1.5").plus(&d("0.25")), Some(d("1.75")));
        assert_eq!(d("2e2").integer(), Some(200));
        assert_eq!(d("2.5").integer(), None);
        assert_eq!(d("0.05").to_string(), "0.05");
        assert_eq!(d("12.340").to_string(), "12.34");
        assert_eq!(d("5000").to_string(), "5000");
    }

    proptest! {
        #[test]
        fn printing_reads_back(n in any::<i64>(), scale in 0_i64..12) {
            let one = Decimal::read(&format!("{n}e-{scale}")).unwrap();
            prop_assert_eq!(Decimal::read(&one.to_string()).unwrap(), one);
        }

        #[test]
        fn never_panics(text in "[-+0-9.eE]{0,40}") {
            let _ = Decimal::read(&text).map(|d| d.to_string());
        }
    }
}
