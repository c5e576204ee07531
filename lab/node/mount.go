package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
)

// Mountpoints are the machine's directories over which every node mounts its own. The directories must exist on the
// machine.
var Mountpoints = []string{
	"/etc/cni/net.d",
	"/opt/cni/bin",
	"/var/lib/cni",
	"/var/lib/containerd",
	"/var/lib/kubelet",
	"/var/log/containers",
	"/var/log/pods",
}

// tunables are the settings that a kubelet requires, and would otherwise change for the whole machine. The node mounts
// files with these values over the settings.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mountAll turns a private copy of the machine's mounts into the node's. It must run as the first process of new PID
// and mount namespaces.
func (c Config) mountAll() error {
	resolv, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		resolv = "/etc/resolv.conf"
	}
	steps := []func() error{
		dropNamespaces,
		func() error { return mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") },
		c.mountSys,
		func() error { return mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755") },
		c.mountOwn,
		c.mountTunables,
		c.mountBootID,
		func() error { return c.mountResolv(resolv) },
		// A mount that a pod makes with mountPropagation: Bidirectional must reach the node, as on a machine that runs
		// systemd.
		func() error { return mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// dropNamespaces unmounts the network namespaces that were mounted on the machine when the node was made. These mounts
// would keep the namespaces and their links alive as long as the node, even after their owners have deleted them.
func dropNamespaces() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "nsfs" {
			continue
		}
		if err := fabric.Detach(fields[1]); err != nil {
			return err
		}
	}
	return nil
}

// mountSys mounts a sysfs that shows the node's network devices. It contains the machine's cgroups, and a bpf file
// system that belongs to the node, so that pins vanish with the node.
func (c Config) mountSys() error {
	staging := c.path("cgroup")
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", staging, err)
	}
	if err := mount("/sys/fs/cgroup", staging, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := mount(staging, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount(staging, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", staging, err)
	}
	err := mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700")
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

func (c Config) mountOwn() error {
	for _, target := range Mountpoints {
		own := c.path("fs", target)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return fmt.Errorf("create %s: %w", own, err)
		}
		if err := mount(own, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) mountTunables() error {
	for name, value := range tunables {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue // this kernel has no such setting
		}
		if err := c.mountFile("tunables/"+name, value+"\n", target); err != nil {
			return err
		}
	}
	return nil
}

// mountBootID gives the node its own boot ID. A kubelet that finds a different boot ID than before reports that its
// machine was rebooted.
func (c Config) mountBootID() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("make a boot ID: %w", err)
	}
	return c.mountFile("boot_id", string(id), "/proc/sys/kernel/random/boot_id")
}

// mountResolv gives the node a name server that refuses queries at once. The machine's name server is not reachable
// from the node. target is the file behind the link /etc/resolv.conf. A target below /run was hidden by the new mount,
// so mountResolv creates it again.
func (c Config) mountResolv(target string) error {
	text := fmt.Sprintf("nameserver %s\n", c.Upstream)
	if strings.HasPrefix(target, "/run/") {
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("create %s: %w", filepath.Dir(target), err)
		}
		if err := os.WriteFile(target, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", target, err)
		}
	}
	return c.mountFile("resolv.conf", text, target)
}

// mountFile writes text to the node's file name and mounts the file over target, if target exists.
func (c Config) mountFile(name, text, target string) error {
	own := c.path(name)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", filepath.Dir(own), err)
	}
	if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", own, err)
	}
	if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return mount(own, target, "", unix.MS_BIND, "")
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}
