package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// routesDeleted has another program delete the routes to pods of other nodes, and end forwarding.
func routesDeleted(r *rig) {
	n := r.nodes[1]
	r.on(n, "sh", "-c", "ip route flush proto "+podRoutes+" type unicast; echo 0 > /proc/sys/net/ipv4/ip_forward")
	r.whole = func() error {
		if all := r.on(n, "ip", "route", "show", "proto", podRoutes); !strings.Contains(all, " via ") {
			return fmt.Errorf("no route to another node's pods: %s", all)
		}
		return nil
	}
}

// podRoutes is the protocol of the routes that Fairway writes (cni.RouteProtocol).
const podRoutes = "70"

// linkDown takes a node's link down, with which all routes over it go, and up again. Routes that are not ours are
// set again, as the node's own program does. The kernel forgets the connections that it masquerades
// with the address of a link that goes down.
func linkDown(r *rig) {
	n := r.nodes[1]
	var others []string
	for route := range strings.Lines(r.on(n, "ip", "route", "show", "dev", "eth0", "type", "unicast")) {
		if !strings.Contains(route, "proto "+podRoutes) && !strings.Contains(route, "proto kernel") {
			others = append(others, strings.TrimSpace(route))
		}
	}
	r.on(n, "ip", "link", "set", "eth0", "down")
	r.makeChange()
	r.hold(20 * time.Second)
	r.on(n, "ip", "link", "set", "eth0", "up")
	for _, route := range others {
		r.on(n, append(append([]string{"ip", "route", "replace"}, strings.Fields(route)...), "dev", "eth0")...)
	}
}

// outOfMemory lets an agent have no more memory than it has. It ends, or works on with what it has.
func outOfMemory(r *rig) {
	n := r.nodes[0]
	pid := r.agent(n)
	group := r.cgroup(pid, "memory")
	limit := filepath.Join(group, "memory.limit_in_bytes")
	was, err := os.ReadFile(limit)
	if err != nil {
		r.Fatal(err)
	}
	r.write(limit, strconv.Itoa(r.resident(pid)+(1<<20)))
	r.makeChange()
	r.hold(30 * time.Second)
	if r.agent(n) == pid {
		r.Log("the agent was not ended")
		r.write(limit, strings.TrimSpace(string(was)))
		return
	}
	r.otherAgent(n, pid) // with a group of its own
}

// noProcesses lets an agent start neither a program nor a thread.
func noProcesses(r *rig) {
	n := r.nodes[0]
	pid := r.agent(n)
	limit := filepath.Join(r.cgroup(pid, "pids"), "pids.max")
	was, err := os.ReadFile(limit)
	if err != nil {
		r.Fatal(err)
	}
	r.write(limit, "1")
	r.makeChange()
	r.hold(30 * time.Second)
	if r.agent(n) == pid {
		r.write(limit, strings.TrimSpace(string(was)))
		return
	}
	r.otherAgent(n, pid)
}

// cgroup is the directory of a process's control group in a hierarchy of version 1.
func (r *rig) cgroup(pid int, controller string) string {
	r.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[1] == controller {
			return filepath.Join("/sys/fs/cgroup", controller, fields[2])
		}
	}
	r.Fatalf("process %d is in no group of %s: %s", pid, controller, text)
	return ""
}

// resident is what a process has in memory that is in no file, in bytes.
func (r *rig) resident(pid int) (bytes int) {
	r.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	r.Fatalf("process %d has no RssAnon: %s", pid, text)
	return 0
}

func (r *rig) write(file, text string) {
	r.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		r.Fatal(err)
	}
}

// diskReadOnly loses the files that an agent has written, on disks that cannot be written, as after an error of
// the file system.
func diskReadOnly(r *rig) {
	pid := r.agent(r.nodes[0])
	each := func(do func(dir string) error) {
		for _, dir := range writtenDirs {
			if err := inMounts(pid, func() error { return do(dir) }); err != nil {
				r.Fatalf("%s: %v", dir, err)
			}
		}
	}
	each(func(dir string) error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	})
	r.makeChange()
	r.awaitChange()
	r.hold(30 * time.Second)
	each(func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") })
	r.whole = func() error { return installed(pid) }
	r.after = func() {
		each(func(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) })
	}
}

// writtenDirs are those that an agent writes to.
var writtenDirs = []string{"/opt/cni/bin", "/etc/cni/net.d", "/tmp"}

// installed returns an error as long as the CNI plugin or its configuration is missing, as a process sees it.
func installed(pid int) error {
	for _, file := range []string{"/opt/cni/bin/fairway-cni", "/etc/cni/net.d/10-fairway.conflist"} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, file)); err != nil {
			return err
		}
	}
	return nil
}

// speakerKilled kills the speakers of all nodes, those that announce the Service's address among them.
func speakerKilled(r *rig) {
	for _, n := range r.nodes {
		r.killed(n, "speaker")
	}
}

// killed kills a program of Fairway's on a node, and waits until the kubelet has started it again.
func (r *rig) killed(n *node, program string) {
	r.Helper()
	old := r.processes(n, "fairway", program)
	if len(old) != 1 {
		r.Fatalf("processes of the %s on %s: %v", program, n.Name, old)
	}
	r.kill(old[0], unix.SIGKILL)
	r.await("another "+program+" on "+n.Name, func() error {
		if now := r.processes(n, "fairway", program); len(now) != 1 || now[0] == old[0] {
			return errors.New("there is none")
		}
		return nil
	})
}
