//! The `acrfence` command.

fn main() -> std::process::ExitCode {
    acrfence_user::cli::main()
}
