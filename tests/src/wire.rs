//! Bytes of HTTP/2 (RFC 9113) and HPACK (RFC 7541) as no library would write them.

/// Types of frames.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    #![allow(missing_docs)]
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// Error codes.
pub mod code {
    #![allow(missing_docs)]
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const STREAM_CLOSED: u32 = 5;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const COMPRESSION_ERROR: u32 = 9;
}

/// What every client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    // The length has three bytes.
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A setting.
pub fn setting(number: u16, value: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// Fields as literals without indexing, uncompressed (RFC 7541 §6.2.2).
pub fn fields<N: AsRef<[u8]>, V: AsRef<[u8]>>(list: &[(N, V)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in list {
        block.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            number(&mut block, text.len());
            block.extend(text);
        }
    }
    block
}

/// A length with a prefix of seven bits (RFC 7541 §5.1).
fn number(block: &mut Vec<u8>, value: usize) {
    const PREFIX: usize = 127;
    if value < PREFIX {
        block.push(value as u8);
        return;
    }
    block.push(PREFIX as u8);
    let mut rest = value - PREFIX;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}
