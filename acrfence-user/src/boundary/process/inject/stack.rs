//! The stack that the kernel builds for a new program: argument and environment pointers and the
//! auxiliary vector. Read, and built anew with more environment.

/// Reading the initial stack more than this is not attempted: the kernel allows 6 MiB of
/// arguments and environment in all.
pub(super) const LONGEST: usize = 6 << 20;

/// How much may be put below the stack pointer. The kernel maps 128 KiB below what it builds;
/// some of that is left alone.
const ROOM: u64 = 96 << 10;

/// Entry of the auxiliary vector: where the program interpreter was loaded.
pub(super) const AT_BASE: u64 = 7;
/// Entry of the auxiliary vector: where the program starts.
pub(super) const AT_ENTRY: u64 = 9;
/// Entry of the auxiliary vector: whether the program runs with more rights than its caller.
pub(super) const AT_SECURE: u64 = 23;
/// Entry of the auxiliary vector: where the kernel's own code page for programs lies.
pub(super) const AT_SYSINFO_EHDR: u64 = 33;

/// What lies at the stack pointer at a program's first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InitialStack {
    arguments: Vec<u64>,
    environment: Vec<u64>,
    auxiliary: Vec<(u64, u64)>,
}

/// The outcome of reading a prefix of the stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// All of it.
    Whole(InitialStack),
    /// It goes on behind these bytes.
    More,
    /// Not an initial stack.
    Odd,
}

/// Bytes to put into a process, and the stack pointer that goes with them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rebuilt {
    /// The new stack pointer, which is also where `bytes` belong.
    pub(super) stack: u64,
    /// The new initial stack with the added strings.
    pub(super) bytes: Vec<u8>,
}

impl InitialStack {
    /// Reads it from the bytes at the stack pointer.
    pub(super) fn read(bytes: &[u8]) -> Read {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let Some(count) = words.next() else {
            return Read::More;
        };
        if count > (LONGEST / 8) as u64 {
            return Read::Odd;
        }
        let mut arguments = Vec::new();
        let mut environment = Vec::new();
        let mut auxiliary = Vec::new();
        loop {
            match words.next() {
                None => return Read::More,
                Some(0) => break,
                Some(pointer) => arguments.push(pointer),
            }
            if arguments.len() as u64 > count {
                return Read::Odd;
            }
        }
        if arguments.len() as u64 != count {
            return Read::Odd;
        }
        loop {
            match words.next() {
                None => return Read::More,
                Some(0) => break,
                Some(pointer) => environment.push(pointer),
            }
        }
        loop {
            let (Some(kind), Some(value)) = (words.next(), words.next()) else {
                return Read::More;
            };
            if kind == 0 {
                break;
            }
            auxiliary.push((kind, value));
        }
        Read::Whole(Self {
            arguments,
            environment,
            auxiliary,
        })
    }

    /// The value of an entry of the auxiliary vector.
    pub(super) fn auxiliary(&self, kind: u64) -> Option<u64> {
        self.auxiliary
            .iter()
            .find_map(|&(k, value)| (k == kind).then_some(value))
    }

    /// The same stack, lower than `stack`, with `variables` (`NAME=value`) after the others; none
    /// where it would not fit.
    pub(super) fn with_environment(&self, stack: u64, variables: &[&[u8]]) -> Option<Rebuilt> {
        let strings: usize = variables.iter().map(|v| v.len() + 1).sum();
        let count = self.environment.len() + variables.len();
        let words = 1 + self.arguments.len() + 1 + count + 1 + 2 * (self.auxiliary.len() + 1);
        let length = (words * 8 + strings) as u64;
        if length > ROOM {
            return None;
        }
        // Both ABIs want the stack pointer at a multiple of 16.
        let at = stack.checked_sub(length)? & !15;

        let mut bytes = Vec::with_capacity(words * 8 + strings);
        let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        put(self.arguments.len() as u64);
        self.arguments.iter().copied().for_each(&mut put);
        put(0);
        self.environment.iter().copied().for_each(&mut put);
        let mut string = at + words as u64 * 8;
        for variable in variables {
            put(string);
            string += variable.len() as u64 + 1;
        }
        put(0);
        for &(kind, value) in self.auxiliary.iter().chain([&(0, 0)]) {
            put(kind);
            put(value);
        }
        for variable in variables {
            bytes.extend_from_slice(variable);
            bytes.push(0);
        }
        Some(Rebuilt { stack: at, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn laid_out(stack: &InitialStack) -> Vec<u8> {
        let mut words = vec![stack.arguments.len() as u64];
        words.extend(&stack.arguments);
        words.push(0);
        words.extend(&stack.environment);
        words.push(0);
        for (kind, value) in &stack.auxiliary {
            words.extend([kind, value]);
        }
        words.extend([0, 0]);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn stacks() -> impl Strategy<Value = InitialStack> {
        let pointers = || prop::collection::vec(1..u64::MAX, 0..40);
        (
            pointers(),
            pointers(),
            prop::collection::vec((1..60u64, any::<u64>()), 0..25),
        )
            .prop_map(|(arguments, environment, auxiliary)| InitialStack {
                arguments,
                environment,
                auxiliary,
            })
    }

    proptest! {
        #[test]
        fn it_reads_what_lies_there_and_asks_for_more_until_then(
            stack in stacks(),
            behind in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = laid_out(&stack);
            let whole = bytes.len();
            for short in 0..whole {
                prop_assert_eq!(InitialStack::read(&bytes[..short]), Read::More);
            }
            bytes.extend(behind);
            prop_assert_eq!(InitialStack::read(&bytes), Read::Whole(stack));
        }

        #[test]
        fn more_environment_changes_nothing_else(
            stack in stacks(),
            pointer in (1u64 << 32)..(1 << 47),
            variables in prop::collection::vec(prop::collection::vec(1..=255u8, 1..80), 0..20),
        ) {
            let variables: Vec<&[u8]> = variables.iter().map(Vec::as_slice).collect();
            let rebuilt = stack.with_environment(pointer, &variables).unwrap();
            prop_assert_eq!(rebuilt.stack % 16, 0);
            prop_assert!(rebuilt.stack + rebuilt.bytes.len() as u64 <= pointer);
            let Read::Whole(new) = InitialStack::read(&rebuilt.bytes) else {
                return Err(TestCaseError::fail("not a stack"));
            };
            prop_assert_eq!(&new.arguments, &stack.arguments);
            prop_assert_eq!(&new.auxiliary, &stack.auxiliary);
            let (old, added) = new.environment.split_at(stack.environment.len());
            prop_assert_eq!(old, &stack.environment[..]);
            for (&at, variable) in added.iter().zip(&variables) {
                let from = usize::try_from(at - rebuilt.stack).unwrap();
                let string = &rebuilt.bytes[from..from + variable.len() + 1];
                prop_assert_eq!(string.strip_suffix(&[0]), Some(*variable));
            }
            prop_assert_eq!(added.len(), variables.len());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            InitialStack::read(&bytes);
        }
    }

    #[test]
    fn a_vector_too_long_for_the_mapped_stack_is_left_alone() {
        let stack = InitialStack {
            arguments: vec![1; 20_000],
            environment: vec![],
            auxiliary: vec![],
        };
        assert_eq!(stack.with_environment(1 << 40, &[b"A=b"]), None);
        assert_eq!(InitialStack::read(&u64::MAX.to_le_bytes()), Read::Odd);
    }
}
