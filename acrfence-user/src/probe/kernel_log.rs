//! What the kernel programs log for people (aya-log), passed on to `tracing`.

use aya::Ebpf;
use aya_log::EbpfLogger;

/// Reads the kernel programs' log.
pub type KernelLog = EbpfLogger<Forward>;

/// Starts reading; none (with a warning) when there is nothing to read.
pub fn start(ebpf: &mut Ebpf) -> Option<KernelLog> {
    EbpfLogger::init_with_logger(ebpf, Forward)
        .inspect_err(|error| tracing::warn!(%error, "the kernel programs' log cannot be read"))
        .ok()
}

/// Passes records on.
pub struct Forward;

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let message = record.args();
        match record.level() {
            log::Level::Error => tracing::error!(target: "acrfence::kernel", "{message}"),
            log::Level::Warn => tracing::warn!(target: "acrfence::kernel", "{message}"),
            log::Level::Info => tracing::info!(target: "acrfence::kernel", "{message}"),
            log::Level::Debug => tracing::debug!(target: "acrfence::kernel", "{message}"),
            log::Level::Trace => tracing::trace!(target: "acrfence::kernel", "{message}"),
        }
    }

    fn flush(&self) {}
}
