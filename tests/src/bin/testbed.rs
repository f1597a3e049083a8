//! The services of the tests, to try things by hand.

use std::time::Duration;

use acrfence_tests::approval::Approval;
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, Options};
use anyhow::Result;
use clap::Parser;

/// Serves an HTTPS bank and an approval service on loopback until standard input ends.
#[derive(Parser)]
struct Arguments {
    /// Port of the bank; 0 means any.
    #[arg(long, default_value_t = 0)]
    bank: u16,
    /// Port of the approval service; 0 means any.
    #[arg(long, default_value_t = 0)]
    approval: u16,
    /// Milliseconds that the bank takes to answer a transfer it has booked.
    #[arg(long, default_value_t = 0)]
    slow: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let authority = Authority::new()?;
    let bank = Bank::start_with(
        &authority,
        Options {
            port: arguments.bank,
            delay: Duration::from_millis(arguments.slow),
            ..Options::default()
        },
    )?;
    let approval = Approval::start(&authority, arguments.approval)?;
    println!("root certificate  {}", authority.root().display());
    println!(
        "bank              {}  (MCP: {})",
        bank.url(""),
        bank.url("/mcp")
    );
    println!(
        "approval service  {}  (MCP: {})",
        approval.url(""),
        approval.url("/mcp")
    );
    println!("They serve until standard input ends (Ctrl-D).");
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    println!("payments          {}", bank.payments());
    println!("deletions         {}", approval.deleted().len());
    Ok(())
}
