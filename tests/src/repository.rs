//! A Git repository whose pushes can be counted.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::bank::reference;
use crate::client::plain;
use crate::process::run;

/// A repository that counts what is pushed to it, and a clone whose agent commits before it pushes.
pub struct Repository {
    dir: tempfile::TempDir,
}

impl Repository {
    /// An empty one, with one commit in the clone.
    pub fn new() -> Result<Self> {
        let repository = Self {
            dir: tempfile::tempdir()?,
        };
        let script = r#"set -e
            git init --quiet --bare remote
            printf '#!/bin/sh\ncat >> "%s/pushes"\n' "$PWD" > remote/hooks/post-receive
            chmod +x remote/hooks/post-receive
            git init --quiet --initial-branch main work
            cd work
            git config user.name tester
            git config user.email tester@example.invalid
            echo 0 > file
            git add file
            git commit --quiet --message start"#;
        let mut shell = plain("/bin/sh");
        shell
            .args(["-c", script])
            .current_dir(repository.dir.path());
        let ended = run("git", &mut shell)?;
        ensure!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
        Ok(repository)
    }

    /// Where it is: the remote in `remote`, the clone in `work`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// How often something was pushed.
    pub fn pushes(&self) -> usize {
        let pushes = std::fs::read_to_string(self.dir.path().join("pushes"));
        pushes.map_or(0, |text| text.lines().count())
    }

    /// Goes back to the start, works, and pushes: a restored agent makes another commit of the same
    /// work.
    pub fn works_and(&self, push: &str) -> String {
        let commit = format!(
            "git commit --quiet --all --message 'at {}'",
            reference().unwrap_or_default()
        );
        format!(
            "cd {}/work && git reset --quiet --hard $(git rev-list --max-parents=0 HEAD) && echo 1 > file && {commit} && {push}",
            self.dir.path().display()
        )
    }
}
