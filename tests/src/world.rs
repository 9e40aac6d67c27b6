//! What a scenario gets: a machine that is up, its dom0, its data disks as the host sees them, and QEMU's control.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::artifacts::{Artifacts, RunDir};
use crate::boot::{Booted, boot};
use crate::dom0::Dom0;
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest, console_log};
use crate::image::{self, Layout};
use crate::progress::Progress;
use crate::qemu::{Accel, Cache, Console, DataDisk, Lifetime, Machine, Qemu};
use crate::qmp::Qmp;
use crate::serial::Serial;

/// The boots that scenarios may need, in the order in which they run. Each costs a boot: prefer the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Boot {
    /// One CPU, C xenstored; two data disks, the second with a log of its writes and flushes.
    Default,
    /// The same with two CPUs: driverdom and guests really run at the same time. The machine of demo, benches and shell.
    TwoCpus,
    /// The default under oxenstored.
    Oxenstored,
    /// Xen without an IOMMU, and no data disks: none could be passed through.
    NoIommu,
}

impl Boot {
    /// Its name in progress lines and directories.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::TwoCpus => "two-cpus",
            Self::Oxenstored => "oxenstored",
            Self::NoIommu => "no-iommu",
        }
    }

    /// Its words on Xen's command line.
    fn xen_words(self) -> Vec<String> {
        match self {
            Self::Default | Self::TwoCpus | Self::Oxenstored => vec![],
            Self::NoIommu => vec!["iommu=0".into()],
        }
    }

    /// A second CPU takes QEMU's threads more time to keep in step than it gains.
    #[must_use]
    pub fn cpus(self) -> u8 {
        match self {
            Self::Default | Self::Oxenstored | Self::NoIommu => 1,
            Self::TwoCpus => 2,
        }
    }

    /// Its words on dom0's kernel command line.
    fn dom0_words(self) -> Vec<String> {
        match self {
            Self::Default | Self::TwoCpus | Self::NoIommu => vec!["store=xenstored".into()],
            Self::Oxenstored => vec!["store=oxenstored".into()],
        }
    }
}

/// The nested machine's memory: dom0's gigabyte and three for guests.
const MEMORY_MIB: u32 = 4096;

/// Size of each data disk (sparse).
const DISK_BYTES: u64 = 1 << 30;

/// PCI device numbers of the two data disks.
pub const DISK: u8 = 5;
/// The one whose writes and flushes are logged.
pub const LOGGED_DISK: u8 = 6;

/// A running nested system.
#[derive(Debug)]
pub struct World {
    /// Commands and files in dom0.
    pub dom0: Dom0,
    /// QEMU's control socket.
    pub qmp: Qmp,
    /// The data disks.
    pub disks: Vec<DataDisk>,
    /// What Xen and dom0 print.
    pub serial: Serial,
    /// Seconds of the boot's stages.
    pub stages: Vec<(String, f64)>,
    run: RunDir,
    qemu: Qemu,
}

/// The machine of `boot`, with its data disks in `run`.
#[must_use]
pub fn machine(boot: Boot, accel: Accel, console: Console, run: &RunDir) -> Machine {
    let disk = |slot: u8, write_log: Option<PathBuf>| DataDisk {
        file: run.path().join(format!("data{slot}.img")),
        slot,
        cache: Cache::Unsafe,
        write_log,
    };
    let log = run.path().join(format!("data{LOGGED_DISK}.log"));
    let disks = match boot {
        Boot::Default | Boot::TwoCpus | Boot::Oxenstored => vec![disk(DISK, None), disk(LOGGED_DISK, Some(log))],
        Boot::NoIommu => vec![],
    };
    Machine {
        accel,
        cpus: boot.cpus(),
        memory_mib: MEMORY_MIB,
        xen_words: boot.xen_words(),
        dom0_words: boot.dom0_words(),
        disks,
        console,
    }
}

impl World {
    /// Boots `machine`, puts the guests into dom0 and makes the data disks assignable.
    ///
    /// # Errors
    /// An infrastructure error that names the stage.
    pub fn start(
        machine: &Machine,
        artifacts: &Artifacts,
        run: RunDir,
        lifetime: Lifetime,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        for disk in &machine.disks {
            image::lay_out(&disk.file, DISK_BYTES, &Layout::default())?;
            if let Some(log) = &disk.write_log {
                std::fs::File::create(log)?;
            }
        }
        let Booted { qemu, serial, dom0, qmp, mut stages } = boot(machine, artifacts, &run, lifetime, progress)?;
        let world = Self { dom0, qmp, disks: machine.disks.clone(), serial, stages: vec![], run, qemu };
        let prepare = || {
            for guest in &artifacts.guests {
                world.put_guest(guest)?;
            }
            for disk in &world.disks {
                world.dom0.check(&format!("xl pci-assignable-add {}", disk.address()), 60)?;
            }
            Ok(())
        };
        let name = "boot: guests and devices";
        let seconds = match machine.console {
            Console::Log => progress.stage(name, prepare)?.1,
            Console::Terminal => prepare().map(|()| 0.0)?,
        };
        stages.push((name.to_owned(), seconds));
        Ok(Self { stages, ..world })
    }

    /// Puts a file into dom0's `/guests`, under its own name.
    ///
    /// # Errors
    /// When it cannot be read or put.
    pub fn put_guest(&self, file: &Path) -> anyhow::Result<()> {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        let name = file.file_name().context("a file name")?.to_string_lossy();
        self.dom0.put(&format!("/guests/{name}"), &bytes)
    }

    /// Starts driverdom and waits until it is ready.
    ///
    /// # Errors
    /// See [`Driverdom::start`].
    pub fn driverdom(&self, config: &Config) -> anyhow::Result<Driverdom<'_>> {
        Driverdom::start(&self.dom0, config)
    }

    /// Starts a Linux guest and waits until it answers.
    ///
    /// # Errors
    /// See [`LinuxGuest::create`].
    pub fn linux(&self, config: &LinuxConfig) -> anyhow::Result<LinuxGuest<'_>> {
        LinuxGuest::create(&self.dom0, config)
    }

    /// What the domain `name` printed on its console; nothing if it never was.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn console(&self, name: &str) -> anyhow::Result<String> {
        Ok(self.dom0.run(&format!("cat {}", console_log(name)), 30)?.out)
    }

    /// The data disk in `slot`.
    ///
    /// # Panics
    /// When the machine has none there.
    #[must_use]
    pub fn disk(&self, slot: u8) -> &DataDisk {
        let found = self.disks.iter().find(|disk| disk.slot == slot);
        found.unwrap_or_else(|| panic!("no data disk in slot {slot}"))
    }

    /// Lays a data disk out anew; nobody may be using it.
    ///
    /// # Errors
    /// When the host cannot.
    pub fn lay_out(&self, slot: u8, layout: &Layout) -> anyhow::Result<()> {
        image::lay_out(&self.disk(slot).file, DISK_BYTES, layout)
    }

    /// Destroys all guests and lays the data disks out anew.
    ///
    /// # Errors
    /// When a guest is left.
    pub fn clean_up(&self) -> anyhow::Result<()> {
        self.dom0.check("clean-up", 180)?;
        self.disks.iter().try_for_each(|disk| self.lay_out(disk.slot, &Layout::default()))
    }

    /// Saves dom0's evidence (guests' consoles, Xen's messages, xenstore) into a directory named `name` of the run.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn save_evidence(&self, name: &str) -> anyhow::Result<PathBuf> {
        let to = self.run.path().join(name);
        std::fs::create_dir_all(&to)?;
        for (file, command) in [
            ("consoles", "tail -n +1 /var/log/xen/console/*.log"),
            ("xl-logs", "tail -n 50 /var/log/xen/*.log"),
            ("xen", "xl dmesg"),
            ("dom0", "dmesg"),
            ("domains", "xl list"),
            ("xenstore", "xenstore-ls -fp"),
        ] {
            let output = self.dom0.run(command, 60)?;
            std::fs::write(to.join(file), output.out + &output.err)?;
        }
        Ok(to)
    }

    /// Fails when QEMU has ended.
    ///
    /// # Errors
    /// An infrastructure error.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.qemu.check_running()
    }

    /// Powers the machine off, and checks that it went down cleanly.
    ///
    /// # Errors
    /// An infrastructure error.
    pub fn power_off(self) -> anyhow::Result<()> {
        let Self { dom0, qmp, serial, stages, qemu, .. } = self;
        Booted { qemu, serial, dom0, qmp, stages }.power_off()
    }

    /// Leaves the machine running, and returns the directory by which it is found again.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.qemu.keep();
        self.run.path().to_path_buf()
    }

    /// Waits until a person has ended the machine.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn wait_for_person(mut self) -> anyhow::Result<()> {
        self.qemu.wait_for_person()?;
        Ok(())
    }
}
