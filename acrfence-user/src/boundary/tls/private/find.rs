//! Where bundles of roots are that programs read without being told: the system's file, Java's, and those that
//! Python packages bring along. Nothing is run to find out, and the search has bounds.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where systems keep the roots in one file (OpenSSL, GnuTLS, Go, curl, rustls-native-certs).
const SYSTEM: [&str; 13] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/lib/ssl/cert.pem",
    "/usr/share/ssl/certs/ca-bundle.crt",
    "/usr/local/share/certs/ca-root-nss.crt",
    "/var/lib/ca-certificates/ca-bundle.pem",
    // Java's.
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
];

/// A Java runtime's own, below its home.
const JAVA: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// Folders each of whose entries may be a Java runtime.
const JAVA_HOMES: &str = "/usr/lib/jvm";

/// Bundles that packages carry, below `site-packages`.
const PACKAGED: [&str; 6] = [
    "certifi/cacert.pem",
    "pip/_vendor/certifi/cacert.pem",
    "botocore/cacert.pem",
    "stripe/data/ca-certificates.crt",
    "httplib2/cacerts.txt",
    "grpc/_cython/_credentials/roots.pem",
];

/// Folders below the home directory, each of whose entries may be an environment.
const COLLECTIONS: [&str; 15] = [
    ".cache/pypoetry/virtualenvs",
    ".cache/uv/archive-v0",
    ".cache/uv/environments-v2",
    ".conda/envs",
    ".local/pipx/venvs",
    ".local/share/pipx/venvs",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/share/virtualenvs",
    ".jdks",
    ".pyenv/versions",
    ".sdkman/candidates/java",
    ".virtualenvs",
    "miniconda3/envs",
    "miniforge3/envs",
];

/// Names of environments beside the code that they are for.
const BESIDE: [&str; 3] = [".venv", "venv", "env"];

/// Bounds of the search.
const ENTRIES_MAX: usize = 4096;
const PREFIXES_MAX: usize = 1024;
const ANCESTORS_MAX: usize = 16;
/// More than a machine has Python environments; a mount each.
const FILES_MAX: usize = 256;

/// What a command will be started in.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Its working directory.
    pub directory: PathBuf,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// `PATH`.
    pub path: Vec<PathBuf>,
    /// Environments that variables name (`VIRTUAL_ENV`, `CONDA_PREFIX`, `JAVA_HOME`).
    pub named: Vec<PathBuf>,
    /// `PYTHONPATH`.
    pub python_path: Vec<PathBuf>,
}

impl Surroundings {
    /// Those of this process, for `command`.
    pub fn of_this_process(command: &[String]) -> Self {
        let list = |name: &str| {
            std::env::var_os(name)
                .map(|value| std::env::split_paths(&value).collect())
                .unwrap_or_default()
        };
        let named = [
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "UV_PROJECT_ENVIRONMENT",
            "JAVA_HOME",
        ];
        Self {
            command: command.iter().map(OsString::from).collect(),
            directory: std::env::current_dir().unwrap_or_default(),
            home: std::env::var_os("HOME").map(PathBuf::from),
            path: list("PATH"),
            named: named
                .iter()
                .filter_map(std::env::var_os)
                .map(PathBuf::from)
                .collect(),
            python_path: list("PYTHONPATH"),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Files, by the path that no link leads to another of them.
    pub files: Vec<PathBuf>,
    /// Whether there is more than is looked at.
    pub more: bool,
}

/// The system's bundle, and those of the Python environments that a command can be expected to use.
pub fn bundles(around: &Surroundings) -> Found {
    let mut search = Search {
        around,
        prefixes: Vec::new(),
        known: HashSet::new(),
        found: Found::default(),
    };
    for file in SYSTEM {
        search.file(Path::new(file));
    }
    search.of_the_command();
    search.of_the_surroundings();
    // Grows while it is walked: an environment names the Python that it was made from.
    let mut next = 0;
    while let Some(prefix) = search.prefixes.get(next).cloned() {
        search.look_into(&prefix);
        next += 1;
    }
    for site in &around.python_path {
        search.site(site);
    }
    search.found
}

struct Search<'a> {
    around: &'a Surroundings,
    /// Folders with a `lib` of Python packages, nearest first.
    prefixes: Vec<PathBuf>,
    known: HashSet<PathBuf>,
    found: Found,
}

impl Search<'_> {
    /// What the command is, and what its words name: `sh -c 'cd project; . venv/bin/activate; …'`.
    fn of_the_command(&mut self) {
        let Some((program, words)) = self.around.command.split_first() else {
            return;
        };
        if let Some(program) = self.resolve(Path::new(program)) {
            self.program(&program, true);
        }
        let pieces = words.iter().flat_map(|word| {
            word.as_bytes()
                .split(|byte| byte.is_ascii_whitespace() || b"'\"=;&|()".contains(byte))
        });
        for piece in pieces.filter(|piece| !piece.is_empty()).take(ENTRIES_MAX) {
            let path = self
                .around
                .directory
                .join(std::ffi::OsStr::from_bytes(piece));
            if path.is_dir() {
                self.beside(&path);
            } else if piece.contains(&b'/') && path.is_file() {
                self.program(&path, true);
            }
        }
    }

    fn of_the_surroundings(&mut self) {
        let around = self.around;
        for prefix in &around.named {
            self.prefix(prefix);
        }
        for folder in around.directory.ancestors().take(ANCESTORS_MAX) {
            self.beside(folder);
        }
        for home in self.entries(Path::new(JAVA_HOMES)) {
            self.prefix(&home);
        }
        for folder in &around.path {
            for name in ["python3", "python", "java"] {
                let program = folder.join(name);
                if program.is_file() {
                    self.program(&program, false);
                }
            }
        }
        let Some(home) = &around.home else {
            return;
        };
        self.prefix(&home.join(".local"));
        for collection in COLLECTIONS {
            for entry in self.entries(&home.join(collection)) {
                self.prefix(&entry);
            }
        }
    }

    /// Environments beside code in this folder.
    fn beside(&mut self, folder: &Path) {
        for name in BESIDE {
            let prefix = folder.join(name);
            if prefix.join("pyvenv.cfg").is_file() {
                self.prefix(&prefix);
            }
        }
    }

    /// A program: the environment that it is in, that its file is in, and its interpreter's.
    fn program(&mut self, program: &Path, is_script: bool) {
        let real = std::fs::canonicalize(program).ok();
        for path in [Some(program), real.as_deref()].into_iter().flatten() {
            if let Some(prefix) = prefix_of(path) {
                self.prefix(prefix);
            }
        }
        if let Some(interpreter) = is_script.then(|| interpreter(program)).flatten()
            && let Some(interpreter) = self.resolve(&interpreter)
        {
            self.program(&interpreter, false);
        }
    }

    /// A file that a name stands for, looked for in `PATH` like the kernel's callers do.
    fn resolve(&self, name: &Path) -> Option<PathBuf> {
        if name.as_os_str().as_bytes().contains(&b'/') {
            return Some(self.around.directory.join(name));
        }
        let mut places = self.around.path.iter().map(|folder| folder.join(name));
        places.find(|place| place.is_file())
    }

    fn prefix(&mut self, prefix: &Path) {
        let Ok(prefix) = std::fs::canonicalize(prefix) else {
            return;
        };
        if self.prefixes.contains(&prefix) {
            return;
        }
        if self.prefixes.len() == PREFIXES_MAX {
            self.found.more = true;
            return;
        }
        self.prefixes.push(prefix);
    }

    /// The packages of one prefix, and the Python that it was made from.
    fn look_into(&mut self, prefix: &Path) {
        let made_from = std::fs::read_to_string(prefix.join("pyvenv.cfg")).unwrap_or_default();
        let home = made_from.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == "home").then(|| value.trim())
        });
        if let Some(home) = home {
            self.program(&Path::new(home).join("python3"), false);
        }
        for store in JAVA {
            self.file(&prefix.join(store));
        }
        for lib in ["lib", "lib64", "local/lib"] {
            for folder in self.entries(&prefix.join(lib)) {
                let name = folder.file_name().unwrap_or_default().as_bytes();
                if name.starts_with(b"python3") || name.starts_with(b"pypy3") {
                    self.site(&folder.join("site-packages"));
                    self.site(&folder.join("dist-packages"));
                }
            }
        }
    }

    fn site(&mut self, site: &Path) {
        for name in PACKAGED {
            self.file(&site.join(name));
        }
    }

    fn file(&mut self, file: &Path) {
        let Ok(file) = std::fs::canonicalize(file) else {
            return;
        };
        if !file.is_file() || !self.known.insert(file.clone()) {
            return;
        }
        if self.found.files.len() == FILES_MAX {
            self.found.more = true;
            return;
        }
        self.found.files.push(file);
    }

    fn entries(&mut self, folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return Vec::new();
        };
        let mut entries = entries.flatten().map(|entry| entry.path());
        let mut first: Vec<_> = entries.by_ref().take(ENTRIES_MAX).collect();
        self.found.more |= entries.next().is_some();
        // The order of a folder is nobody's choice.
        first.sort();
        first
    }
}

/// The environment of a program in its `bin`.
fn prefix_of(program: &Path) -> Option<&Path> {
    let folder = program.parent()?;
    (folder.file_name()? == "bin").then(|| folder.parent())?
}

/// What a script's first line says that runs it.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    let file = std::fs::File::open(script).ok()?;
    file.take(512).read_to_end(&mut start).ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let program = Path::new(words.next()?);
    if program.file_name()? != "env" {
        return Some(program.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// An environment with a bundle, as `python -m venv` and pip leave one.
    fn environment(prefix: &Path, made_from: &Path) -> PathBuf {
        let site = prefix.join("lib/python3.11/site-packages");
        let bundle = site.join("certifi/cacert.pem");
        fs::create_dir_all(bundle.parent().unwrap()).unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::write(&bundle, "roots").unwrap();
        fs::write(prefix.join("bin/python3"), "").unwrap();
        let home = made_from.join("bin");
        let config = format!("home = {}\nversion = 3.11.2\n", home.display());
        fs::write(prefix.join("pyvenv.cfg"), config).unwrap();
        bundle
    }

    fn found(around: &Surroundings, below: &Path) -> Vec<PathBuf> {
        let found = bundles(around);
        assert!(!found.more);
        let files = found.files.into_iter();
        files.filter(|file| file.starts_with(below)).collect()
    }

    #[test]
    fn environments_are_found_by_whatever_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let base = root.join("base");
        let bundle = environment(&root.join("project/.venv"), &base);
        let nothing = Surroundings {
            directory: root.clone(),
            ..Surroundings::default()
        };
        assert!(found(&nothing, &root).is_empty());
        let tool = root.join("tool");
        let script = format!("#!{}/project/.venv/bin/python3 -I\n", root.display());
        fs::write(&tool, script).unwrap();
        let in_path = root.join("project/.venv/bin/tool");
        fs::write(&in_path, "#!/usr/bin/env -S python3 -B\n").unwrap();
        let link = root.join("link");
        std::os::unix::fs::symlink(&in_path, &link).unwrap();
        let command = |words: &[&str]| Surroundings {
            command: words.iter().map(OsString::from).collect(),
            ..nothing.clone()
        };
        for around in [
            command(&["project/.venv/bin/python3", "agent.py"]),
            command(&["sh", "-c", "cd project && exec .venv/bin/python3 agent.py"]),
            command(&["sh", "-c", ". 'project/.venv/bin/tool'; agent"]),
            command(&[tool.to_str().unwrap()]),
            command(&[link.to_str().unwrap()]),
            Surroundings {
                path: vec![root.join("project/.venv/bin")],
                ..command(&["tool"])
            },
            Surroundings {
                directory: root.join("project/src/deep"),
                ..nothing.clone()
            },
            Surroundings {
                named: vec![root.join("project/.venv")],
                ..nothing.clone()
            },
            Surroundings {
                python_path: vec![root.join("project/.venv/lib/python3.11/site-packages")],
                ..nothing.clone()
            },
        ] {
            fs::create_dir_all(&around.directory).unwrap();
            assert_eq!(
                found(&around, &root),
                std::slice::from_ref(&bundle),
                "{around:?}"
            );
        }
        // What it was made from counts as well.
        let of_base = environment(&base, &root.join("none"));
        let both = found(&command(&["project/.venv/bin/python3"]), &root);
        assert_eq!(both, [bundle, of_base]);
    }

    #[test]
    fn collections_below_the_home_directory_are_looked_through_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let tools = root.join(".local/share/uv/tools");
        let expected: Vec<_> = ["a", "b"]
            .map(|name| environment(&tools.join(name), &root))
            .into();
        let around = Surroundings {
            home: Some(root.clone()),
            ..Surroundings::default()
        };
        assert_eq!(found(&around, &root), expected);
        for n in 0..FILES_MAX {
            environment(&tools.join(format!("more{n}")), &root);
        }
        let found = bundles(&around);
        assert!(found.more);
        assert_eq!(found.files.len(), FILES_MAX);
    }
}
