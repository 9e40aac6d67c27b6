//! The files that a boot needs, and the directory that a run leaves.

use std::path::{Path, PathBuf};

/// What the cached images and the build gave.
#[derive(Debug, Clone)]
pub struct Artifacts {
    /// Xen, unpacked (multiboot).
    pub xen: PathBuf,
    /// dom0's Linux, as Debian packs it.
    pub dom0_kernel: PathBuf,
    /// dom0's initrd, which finds the root disk.
    pub dom0_initrd: PathBuf,
    /// dom0's root file system; never written to. Holds the guests' kernel as `/guests/vmlinux`.
    pub dom0_image: PathBuf,
    /// The program for dom0 (`tests/dom0`): its agent, and what benches run there.
    pub dom0_tools: PathBuf,
    /// Files put into dom0's `/guests` at each boot, by their own names: they change more often than the images.
    pub guests: Vec<PathBuf>,
}

/// Where one boot keeps its sockets, logs and data disks.
#[derive(Debug, Clone)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// An empty directory at `path`.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(path)?,
        }
        Ok(Self(path.to_path_buf()))
    }

    /// The directory of a system which is still running.
    #[must_use]
    pub fn of_running(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What Xen and dom0 print.
    #[must_use]
    pub fn serial_log(&self) -> PathBuf {
        self.0.join("serial.log")
    }

    /// QEMU's command line and what it prints itself.
    #[must_use]
    pub fn qemu_log(&self) -> PathBuf {
        self.0.join("qemu.log")
    }

    /// QEMU's process number, for a system that outlives its starter.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("qemu.pid")
    }

    /// Held by who uses a kept machine.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// QEMU's control socket.
    #[must_use]
    pub fn qmp_socket(&self) -> PathBuf {
        self.0.join("qmp")
    }

    /// The agent's command socket.
    #[must_use]
    pub fn commands_socket(&self) -> PathBuf {
        self.0.join("commands")
    }

    /// The agent's socket for raw bytes.
    #[must_use]
    pub fn bulk_socket(&self) -> PathBuf {
        self.0.join("bulk")
    }
}
