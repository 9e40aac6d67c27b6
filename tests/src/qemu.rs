//! QEMU: the machine as a value, its command line, and the process.
//!
//! The CPU model is not a matter of taste: `max` with SMAP crashes dom0 under TCG, and with XSAVE or AVX vector state leaks
//! between domains (wrong checksums). See `selfcheck`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::artifacts::{Artifacts, RunDir};
use crate::infrastructure::infrastructure;

/// The CPU model under TCG which runs Xen beside its guests without corrupting them.
const TCG_CPU: &str = "max,-smap,-xsave,-avx,-avx2,-avx512f";

/// dom0's memory; the rest of the machine's is the guests'.
const DOM0_MEMORY_MIB: u32 = 1024;

/// PCI address of a second, read-only disk with dom0's root, which may be passed through: a Linux driver domain's root.
pub const ROOT_COPY: &str = "00:07.0";

/// What executes the nested system's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// QEMU's translator: works everywhere.
    Tcg,
    /// The host's hypervisor; needs nested virtualisation.
    Kvm,
}

impl Accel {
    /// KVM only where the CPU has it: `/dev/kvm` may open on a host where Xen then fails at once.
    #[must_use]
    pub fn detect() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let usable = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        Self::choose(&cpu, usable)
    }

    fn choose(cpuinfo: &str, kvm_opens: bool) -> Self {
        let virtualises = cpuinfo
            .lines()
            .find(|line| line.starts_with("flags"))
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"));
        if virtualises && kvm_opens { Self::Kvm } else { Self::Tcg }
    }
}

/// What happens to writes and flushes on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Flushes reach the host's disk.
    Writeback,
    /// Flushes are counted and logged, yet not waited for: the host's crash is not what we test.
    Unsafe,
}

/// A virtio disk behind the IOMMU, to be passed through.
#[derive(Debug, Clone)]
pub struct DataDisk {
    /// The real file: what a guest wrote is to be found there.
    pub file: PathBuf,
    /// Device number on bus 0: `5` is `00:05.0`.
    pub slot: u8,
    /// Host caching.
    pub cache: Cache,
    /// Where QEMU logs each write and flush in their order (`blklogwrites`), if wanted.
    pub write_log: Option<PathBuf>,
}

impl DataDisk {
    /// Its address as xl writes it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("00:{:02x}.0", self.slot)
    }
}

/// Where the machine's serial line goes besides the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Console {
    /// Nowhere.
    Log,
    /// To the terminal this runs in.
    Terminal,
}

/// How long QEMU may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the value that owns it, or its starter, goes.
    Owned,
    /// The same, yet it may be kept beyond: see [`Qemu::keep`]. A starter that is killed leaves it behind.
    Keepable,
}

/// A machine to boot.
#[derive(Debug, Clone)]
pub struct Machine {
    /// What executes it.
    pub accel: Accel,
    /// CPUs, which Xen shares out.
    pub cpus: u8,
    /// All its memory, in MiB.
    pub memory_mib: u32,
    /// Further words of Xen's command line.
    pub xen_words: Vec<String>,
    /// Further words of dom0's kernel command line; `tests/images/dom0/start` reads some.
    pub dom0_words: Vec<String>,
    /// Disks to pass through.
    pub disks: Vec<DataDisk>,
    /// The serial line.
    pub console: Console,
}

impl Machine {
    /// QEMU's arguments. Every one is fixed by the arguments of this function.
    #[must_use]
    pub fn arguments(&self, artifacts: &Artifacts, run: &RunDir) -> Vec<String> {
        let mut all = vec![];
        let mut add = |words: &[&str]| all.extend(words.iter().map(ToString::to_string));
        match self.accel {
            Accel::Tcg => add(&["-accel", "tcg,thread=multi", "-cpu", TCG_CPU]),
            Accel::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        }
        let machine = match self.accel {
            Accel::Tcg => "q35",
            Accel::Kvm => "q35,kernel-irqchip=split",
        };
        add(&["-M", machine, "-smp", &self.cpus.to_string(), "-m", &self.memory_mib.to_string()]);
        add(&["-nodefaults", "-no-reboot", "-display", "none", "-device", "intel-iommu,intremap=on"]);
        add(&["-kernel", &text(&artifacts.xen), "-append", &self.xen_line()]);
        let dom0 = format!("{} {}", text(&artifacts.dom0_kernel), self.dom0_line());
        add(&["-initrd", &format!("{dom0},{}", text(&artifacts.dom0_initrd))]);
        let console = match self.console {
            Console::Log => "null,id=serial",
            Console::Terminal => "stdio,id=serial,mux=on,signal=off",
        };
        add(&[
            "-chardev",
            &format!("{console},logfile={},logappend=off", text(&run.serial_log())),
            "-serial",
            "chardev:serial",
        ]);
        if self.console == Console::Terminal {
            add(&["-mon", "chardev=serial,mode=readline"]);
        }
        add(&["-qmp", &format!("unix:{},server=on,wait=off", text(&run.qmp_socket()))]);
        let root = format!("if=none,id=root,format=raw,cache=unsafe,snapshot=on,file={}", text(&artifacts.dom0_image));
        add(&["-drive", &root, "-device", "virtio-blk-pci,drive=root,addr=03.0"]);
        let copy = format!("driver=file,node-name=copy-file,read-only=on,filename={}", text(&artifacts.dom0_image));
        add(&["-blockdev", &copy, "-blockdev", "driver=raw,node-name=copy,read-only=on,file=copy-file"]);
        add(&["-device", "virtio-blk-pci,drive=copy,addr=07.0,disable-legacy=on,iommu_platform=on"]);
        add(&["-device", "virtio-serial-pci,addr=04.0"]);
        for (name, socket) in [("commands", run.commands_socket()), ("bulk", run.bulk_socket())] {
            add(&["-chardev", &format!("socket,id={name},server=on,wait=off,path={}", text(&socket))]);
            add(&["-device", &format!("virtserialport,chardev={name},name=org.driverdom.{name}")]);
        }
        for disk in &self.disks {
            add(&disk_arguments(disk).iter().map(String::as_str).collect::<Vec<_>>());
        }
        all
    }

    fn xen_line(&self) -> String {
        let memory = format!("dom0_mem={DOM0_MEMORY_MIB}M,max:{DOM0_MEMORY_MIB}M");
        words("console=com1 com1=115200,8n1", &memory, &self.xen_words)
    }

    fn dom0_line(&self) -> String {
        words("console=hvc0", "quiet", &self.dom0_words)
    }

    /// Starts QEMU; its command line is the first thing in `run`'s QEMU log.
    ///
    /// # Errors
    /// When QEMU is not installed, or a file cannot be made.
    pub fn start(&self, artifacts: &Artifacts, run: &RunDir, lifetime: Lifetime) -> anyhow::Result<Qemu> {
        let mut words: Vec<String> = match lifetime {
            // The kernel ends QEMU when the thread that started it goes, however it goes.
            Lifetime::Owned => vec!["setpriv".into(), "--pdeathsig".into(), "KILL".into()],
            Lifetime::Keepable => vec!["setsid".into()],
        };
        words.push("qemu-system-x86_64".into());
        words.extend(self.arguments(artifacts, run));
        let mut log = File::create(run.qemu_log()).context("the QEMU log")?;
        writeln!(log, "{}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stderr(log);
        if self.console == Console::Log {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let child = command.spawn().with_context(|| format!("cannot start {}: run 'cargo xtask setup'", words[0]))?;
        std::fs::write(run.pid_file(), child.id().to_string())?;
        Ok(Qemu { child, log: run.qemu_log() })
    }
}

fn disk_arguments(disk: &DataDisk) -> Vec<String> {
    let slot = disk.slot;
    let no_flush = if disk.cache == Cache::Unsafe { "on" } else { "off" };
    let file = |node: &str, path: &Path| {
        format!("driver=file,node-name={node},locking=off,cache.no-flush={no_flush},filename={}", text(path))
    };
    let mut all = vec!["-blockdev".into(), file(&format!("data{slot}-file"), &disk.file)];
    all.extend(["-blockdev".into(), format!("driver=raw,node-name=data{slot}-raw,file=data{slot}-file")]);
    let mut top = format!("data{slot}-raw");
    if let Some(log) = &disk.write_log {
        all.extend(["-blockdev".into(), file(&format!("data{slot}-log-file"), log)]);
        all.extend(["-blockdev".into(), format!("driver=raw,node-name=data{slot}-log,file=data{slot}-log-file")]);
        let logged = format!(
            "driver=blklogwrites,node-name=data{slot}-logged,file={top},log=data{slot}-log,log-sector-size=512"
        );
        all.extend(["-blockdev".into(), logged]);
        top = format!("data{slot}-logged");
    }
    let device = format!("virtio-blk-pci,id=data{slot},drive={top},addr={slot:02x}.0,serial=data{slot}");
    all.extend(["-device".into(), format!("{device},disable-legacy=on,iommu_platform=on,write-cache=on")]);
    all
}

fn words(first: &str, second: &str, more: &[String]) -> String {
    let mut line = format!("{first} {second}");
    for word in more {
        line.push(' ');
        line.push_str(word);
    }
    line
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '*', '(', '\'']) { format!("'{}'", word.replace('\'', r"'\''")) } else { word.to_owned() }
}

/// A running QEMU; ended when dropped.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    log: PathBuf,
}

impl Qemu {
    /// Fails if QEMU has ended, with what it said.
    ///
    /// # Errors
    /// An infrastructure error.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(infrastructure(format!("QEMU ended early ({status}): {}", self.said()))),
        }
    }

    /// Waits for QEMU to end by itself.
    ///
    /// # Errors
    /// When it does not within `limit`.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(infrastructure(format!("QEMU still runs after {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for QEMU to end, however long a person takes.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn wait_for_person(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Leaves QEMU running, if it was started [`Lifetime::Keepable`].
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// What QEMU itself printed after its command line.
    fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().skip(1).collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(machine: &Machine) -> Vec<String> {
        let artifacts = Artifacts {
            xen: "X".into(),
            dom0_kernel: "K".into(),
            dom0_initrd: "I".into(),
            dom0_image: "R".into(),
            dom0_tools: "T".into(),
            guests: vec![],
        };
        machine.arguments(&artifacts, &RunDir::of_running(Path::new("run")))
    }

    fn machine(disks: Vec<DataDisk>) -> Machine {
        Machine {
            accel: Accel::Tcg,
            cpus: 2,
            memory_mib: 4096,
            xen_words: vec![],
            dom0_words: vec!["store=xenstored".into()],
            disks,
            console: Console::Log,
        }
    }

    fn has(all: &[String], option: &str, value: &str) -> bool {
        all.windows(2).any(|pair| pair[0] == option && pair[1] == value)
    }

    #[test]
    fn accel_is_kvm_only_where_the_cpu_virtualises() {
        for (cpuinfo, opens, expect) in [
            ("flags\t: fpu vmx sse", true, Accel::Kvm),
            ("flags\t: fpu svm", true, Accel::Kvm),
            ("flags\t: fpu svm", false, Accel::Tcg),
            ("flags\t: fpu sse svm_lock", true, Accel::Tcg),
            ("model name\t: has vmx in its name", true, Accel::Tcg),
            ("", true, Accel::Tcg),
        ] {
            assert_eq!(Accel::choose(cpuinfo, opens), expect, "{cpuinfo:?} {opens}");
        }
    }

    #[test]
    fn the_command_lines_of_xen_and_dom0_are_words_of_one_argument() {
        let all = arguments(&machine(vec![]));
        assert!(has(&all, "-append", "console=com1 com1=115200,8n1 dom0_mem=1024M,max:1024M"));
        assert!(has(&all, "-initrd", "K console=hvc0 quiet store=xenstored,I"));
        assert!(has(&all, "-cpu", TCG_CPU));
    }

    #[test]
    fn a_data_disk_is_a_modern_virtio_device_behind_the_iommu_on_a_real_file() {
        let disk = DataDisk { file: "D".into(), slot: 5, cache: Cache::Unsafe, write_log: None };
        assert_eq!(disk.address(), "00:05.0");
        let all = arguments(&machine(vec![disk]));
        assert!(has(&all, "-blockdev", "driver=file,node-name=data5-file,locking=off,cache.no-flush=on,filename=D"));
        let device = "virtio-blk-pci,id=data5,drive=data5-raw,addr=05.0,serial=data5,disable-legacy=on,iommu_platform=on,write-cache=on";
        assert!(has(&all, "-device", device));
        assert!(!all.iter().any(|word| word.contains("snapshot=on") && word.contains("file=D")));
    }

    #[test]
    fn a_write_log_stands_between_the_device_and_the_file() {
        let disk = DataDisk { file: "D".into(), slot: 6, cache: Cache::Writeback, write_log: Some("L".into()) };
        let all = arguments(&machine(vec![disk]));
        assert!(all.iter().any(|word| word.starts_with("driver=blklogwrites,node-name=data6-logged,file=data6-raw,log=data6-log")));
        assert!(all.iter().any(|word| word.starts_with("virtio-blk-pci,id=data6,drive=data6-logged,addr=06.0")));
    }
}
