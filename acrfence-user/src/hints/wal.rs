//! The write-ahead log of a SQLite file, put over a copy of that file: what was committed last stands
//! only there. <https://sqlite.org/fileformat2.html#the_write_ahead_log>

/// Bytes before the first frame.
pub(super) const HEADER: usize = 32;

const FRAME: usize = 24;

/// Puts all that was committed in `log` over `file`, which may grow to `most` bytes. What is not whole,
/// or left over from an earlier use of the log, ends it. False where that cannot be.
pub(super) fn overlay(file: &mut Vec<u8>, log: &[u8], most: usize) -> bool {
    let Some(head) = Head::read(log) else {
        // Nothing was ever written, or it was reset.
        return true;
    };
    let mut sum = head.sum;
    let mut pending: Vec<(u32, &[u8])> = Vec::new();
    for frame in log[HEADER..].chunks_exact(FRAME + head.page) {
        let (about, page) = frame.split_at(FRAME);
        if about[8..16] != head.salts {
            break;
        }
        sum = head.sum_of(sum, &about[..8]);
        sum = head.sum_of(sum, page);
        if (big(about, 16), big(about, 20)) != (Some(sum.0), Some(sum.1)) {
            break;
        }
        let (Some(number), Some(pages)) = (big(about, 0), big(about, 4)) else {
            break;
        };
        if number == 0 {
            return false;
        }
        pending.push((number, page));
        if pages == 0 {
            continue;
        }
        // Committed: the file has so many pages now.
        let length = pages as usize * head.page;
        if length > most {
            return false;
        }
        file.resize(length, 0);
        for (number, page) in pending.drain(..) {
            let at = (number as usize - 1) * head.page;
            if let Some(place) = file.get_mut(at..at + head.page) {
                place.copy_from_slice(page);
            }
        }
    }
    true
}

struct Head {
    page: usize,
    salts: [u8; 8],
    sum: (u32, u32),
    big: bool,
}

impl Head {
    fn read(log: &[u8]) -> Option<Self> {
        let head = log.get(..HEADER)?;
        let big_sums = match big(head, 0)? {
            0x377f_0682 => false,
            0x377f_0683 => true,
            _ => return None,
        };
        let page = big(head, 8)? as usize;
        if big(head, 4)? != 3_007_000 || !page.is_power_of_two() || !(512..=65536).contains(&page) {
            return None;
        }
        let mut read = Self {
            page,
            salts: head[16..24].try_into().ok()?,
            sum: (0, 0),
            big: big_sums,
        };
        read.sum = read.sum_of((0, 0), &head[..24]);
        (read.sum == (big(head, 24)?, big(head, 28)?)).then_some(read)
    }

    fn sum_of(&self, (mut a, mut b): (u32, u32), bytes: &[u8]) -> (u32, u32) {
        let word = |four: &[u8]| {
            let four = [four[0], four[1], four[2], four[3]];
            if self.big {
                u32::from_be_bytes(four)
            } else {
                u32::from_le_bytes(four)
            }
        };
        for two in bytes.chunks_exact(8) {
            a = a.wrapping_add(word(&two[..4])).wrapping_add(b);
            b = b.wrapping_add(word(&two[4..])).wrapping_add(a);
        }
        (a, b)
    }
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}
