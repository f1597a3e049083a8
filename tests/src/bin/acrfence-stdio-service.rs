//! A service of the testbed as an MCP server on standard input and output, for agents that start
//! their servers themselves. It keeps its books in a directory, over all its lives.

use std::path::PathBuf;
use std::sync::Arc;

use acrfence_tests::approval::{Desk, Mode};
use acrfence_tests::bank::Books;
use acrfence_tests::cloud::Racks;
use acrfence_tests::ledger::Ledger;
use acrfence_tests::mcp::{ApprovalTools, BankTools, CloudTools};
use acrfence_tests::pace::Pace;
use anyhow::Result;
use clap::{Parser, ValueEnum};
use rmcp::{ServerHandler, ServiceExt as _, transport::stdio};

/// Serves MCP on standard input and output until its input ends.
#[derive(Parser)]
struct Arguments {
    /// Which service.
    #[arg(value_enum)]
    service: Service,
    /// Where its books are.
    #[arg(long)]
    books: PathBuf,
    /// What is on the account at the beginning.
    #[arg(long, default_value_t = 2000)]
    balance: u64,
    /// How approvals are kept from being used twice.
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// After how many actions it kills the agent that started it.
    #[arg(long, default_value_t = 0)]
    crashes: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Service {
    Bank,
    Cloud,
    Approval,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let books = arguments.books;
    let pace = Pace::of_gate(&books).crashing(arguments.crashes);
    match arguments.service {
        Service::Bank => {
            let ledger = Ledger::in_file(books.join("bank.jsonl"));
            let books = Books::new(arguments.balance, ledger, pace);
            serve(BankTools::new(Arc::new(books))).await
        }
        Service::Cloud => {
            let ledger = Ledger::in_file(books.join("cloud.jsonl"));
            serve(CloudTools::new(Arc::new(Racks::new(ledger, pace)))).await
        }
        Service::Approval => {
            let desk = Desk::in_directory(arguments.mode, books, pace)?;
            serve(ApprovalTools::new(Arc::new(desk))).await
        }
    }
}

async fn serve(tools: impl ServerHandler) -> Result<()> {
    tools.serve(stdio()).await?.waiting().await?;
    Ok(())
}
