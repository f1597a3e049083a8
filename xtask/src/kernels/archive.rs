//! The files of the machine inside.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::succeed;
use crate::environment::PYTHON;
use crate::toolchain::output;

/// A folder that becomes the root of the machine inside.
pub struct Root {
    place: PathBuf,
    /// Libraries that are in it.
    libraries: HashSet<PathBuf>,
}

impl Root {
    /// An empty one.
    pub fn new(place: &Path) -> Result<Self> {
        if place.exists() {
            fs::remove_dir_all(place)?;
        }
        for folder in [
            "usr/bin",
            "usr/lib",
            "usr/lib64",
            "proc",
            "sys",
            "dev",
            "tmp",
            "run",
            "etc",
            "root",
        ] {
            fs::create_dir_all(place.join(folder))?;
        }
        for (link, to) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("usr/sbin", "bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            symlink(to, place.join(link))?;
        }
        Ok(Self {
            place: place.to_owned(),
            libraries: HashSet::new(),
        })
    }

    /// Copies a file to a place.
    pub fn put(&mut self, from: &Path, to: &Path) -> Result<()> {
        let to = self.inside(to);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
            .map(drop)
    }

    /// Writes a file.
    pub fn write(&mut self, to: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.inside(Path::new(to)), text)?)
    }

    /// Writes a script.
    pub fn write_program(&mut self, to: &str, text: &str) -> Result<()> {
        self.write(to, text)?;
        let mode = fs::Permissions::from_mode(0o755);
        Ok(fs::set_permissions(self.inside(Path::new(to)), mode)?)
    }

    /// A program of this system, by its name, and the libraries that it needs.
    pub fn add_program(&mut self, name: &str) -> Result<()> {
        // Not one in PATH that may be a wrapper of a version manager.
        let file = if name == "python3" {
            PathBuf::from(PYTHON)
        } else {
            let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
            let mut files = places.iter().map(|place| Path::new(place).join(name));
            files
                .find(|file| file.exists())
                .with_context(|| format!("the tests start {name}, which is not installed"))?
        };
        self.put(&file, &Path::new("/usr/bin").join(name))?;
        self.add_libraries(&file)
    }

    /// A program of ours, without what only a debugger reads.
    pub fn add_stripped(&mut self, file: &Path) -> Result<()> {
        let to = self.inside(file);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        succeed(
            Command::new("strip")
                .arg("--strip-debug")
                .arg("-o")
                .arg(&to)
                .arg(file),
        )?;
        self.add_libraries(file)
    }

    /// Python's own modules, without those that nobody needs here.
    pub fn add_python(&mut self) -> Result<()> {
        let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
        let place = output(Command::new(PYTHON).args(["-c", ask])).context("no Python")?;
        let place = PathBuf::from(place.trim());
        self.add_folder(&place)?;
        for unwanted in [
            "test",
            "idlelib",
            "ensurepip",
            "lib2to3",
            "pydoc_data",
            "tkinter",
            "turtledemo",
            "distutils",
            "dist-packages",
        ] {
            match fs::remove_dir_all(self.inside(&place.join(unwanted))) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        for module in fs::read_dir(place.join("lib-dynload"))? {
            self.add_libraries(&module?.path())?;
        }
        Ok(())
    }

    /// A folder of this system, as it is.
    pub fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let to = self.inside(folder);
        let parent = to.parent().context("not the root itself")?;
        fs::create_dir_all(parent)?;
        succeed(
            Command::new("cp")
                .arg("-a")
                .arg("--")
                .arg(folder)
                .arg(parent),
        )
    }

    /// Packs everything into an archive as the kernel wants it.
    pub fn pack(self, busybox: &Path, archive: &Path) -> Result<PathBuf> {
        let mut find = Command::new("find")
            .arg(".")
            .current_dir(&self.place)
            .stdout(Stdio::piped())
            .spawn()?;
        let names = find.stdout.take().context("no names")?;
        succeed(
            Command::new(busybox)
                .args(["cpio", "-o", "-H", "newc"])
                .current_dir(&self.place)
                .stdin(names)
                .stdout(File::create(archive)?)
                .stderr(Stdio::null()),
        )?;
        ensure!(find.wait()?.success(), "the files cannot be listed");
        Ok(archive.to_owned())
    }

    fn add_libraries(&mut self, program: &Path) -> Result<()> {
        // Scripts and static programs have none.
        let Some(listed) = output(Command::new("ldd").arg(program)) else {
            return Ok(());
        };
        for line in listed.lines() {
            if line.contains("not found") {
                bail!("{} lacks a library: {}", program.display(), line.trim());
            }
            let mut words = line.split_whitespace();
            let Some(library) = words.find(|word| word.starts_with('/')) else {
                continue;
            };
            let library = PathBuf::from(library);
            if self.libraries.insert(library.clone()) {
                self.put(&library, &library)?;
            }
        }
        Ok(())
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.place.join(path.strip_prefix("/").unwrap_or(path))
    }
}
