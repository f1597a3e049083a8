use clap::Parser;
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: acrfence_user::cli::judge::JudgeArgs,
}
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    acrfence_user::cli::judge::run(Cli::parse().args, &mut std::io::stdout()).await
}
