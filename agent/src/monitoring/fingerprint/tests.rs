use super::*;

const CPUINFO: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\ncpu MHz\t\t: 2499.998\n\n\
                       processor\t: 1\nmodel name\t: Some CPU @ 2.50GHz\ncpu MHz\t\t: 2499.998\n";

#[test]
fn cpuinfo_gives_model_and_frequency() {
    assert_eq!(
        cpu::field(CPUINFO, "model name"),
        Some("Some CPU @ 2.50GHz")
    );
    assert_eq!(cpu::info_mhz(CPUINFO), Some(2_500));
    assert_eq!(cpu::info_mhz("processor : 0\n"), None);
}

#[test]
fn meminfo_is_in_bytes() {
    let parsed = memory::parse("MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   50 kB\n");

    assert_eq!(
        (parsed.total, parsed.free, parsed.available),
        (102_400, 7_168, 51_200)
    );
}

#[test]
fn os_release_loses_its_quotes() {
    let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"13\"\nID=debian\n";

    assert_eq!(host::os_field(text, "ID").as_deref(), Some("debian"));
    assert_eq!(host::os_field(text, "VERSION_ID").as_deref(), Some("13"));
}

#[test]
fn the_deepest_mount_is_the_volume() {
    let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /srv ext4 rw 0 0\n/dev/c /srv/data xfs rw 0 0\n";

    assert_eq!(
        storage::volume(Path::new("/srv/data/muster"), mounts),
        Some("/dev/c")
    );
    assert_eq!(
        storage::volume(Path::new("/srv/database"), mounts),
        Some("/dev/b")
    );
}

#[test]
fn percent_of_nothing_is_none_used() {
    assert_eq!((storage::percent(0, 0), storage::percent(81, 100)), (0, 81));
}

#[test]
fn this_machine_has_the_requested_namespaces() {
    let facts = gather(Path::new("/"));

    assert!(facts.total.cpu_mhz > 0 && facts.total.memory_mb > 0 && facts.cores > 0);
    for name in [
        "cpu.arch",
        "cpu.numcores",
        "cpu.totalcompute",
        "kernel.version",
        "unique.hostname",
        "os.signals",
    ] {
        assert!(facts.attributes.contains_key(name), "{name}");
    }
    let signals = &facts.attributes["os.signals"];
    assert!(signals.split(',').any(|signal| signal == "SIGTERM"));
    assert_eq!(boot_id().len(), 36);
}
