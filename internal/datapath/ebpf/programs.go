package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// programs are the loaded programs and their maps.
type programs struct {
	connectMaps
	choosers
	links    []link.Link // of cgroups
	watching []link.Link // of tracepoints
	root     string      // the cgroup
	pods     bool        // the cgroup above all pods is known
	blind    error       // why failed sockets eject no endpoint; nil: they do
}

// choosers are the programs of sockets, watchers the programs that see sockets fail.
type (
	choosers struct {
		Connect4     *ebpf.Program `ebpf:"connect4"`
		Connect6     *ebpf.Program `ebpf:"connect6"`
		Getpeername4 *ebpf.Program `ebpf:"getpeername4"`
		Getpeername6 *ebpf.Program `ebpf:"getpeername6"`
		SockRelease  *ebpf.Program `ebpf:"sock_release"`
	}
	watchers struct {
		Refused *ebpf.Program `ebpf:"refused"`
		Silent  *ebpf.Program `ebpf:"silent"`
	}
)

// layout is the version of the maps. An agent replaces pinned maps of another layout: sockets that are open at that time
// lose the Service's address as their peer, and are not counted.
const layout = 3

// A hook is a place to which a program is attached.
type hook struct {
	name string // of the program, and of the link's pin
	at   ebpf.AttachType
}

// choosing are the hooks that give sockets their endpoints, noted the hooks that only serve such sockets, watched the
// tracepoints. A program that reads socks must be attached before any that writes them.
var (
	noted    = []hook{{"sock_release", ebpf.AttachCgroupInetSockRelease}, {"getpeername4", ebpf.AttachCgroupInet4GetPeername}, {"getpeername6", ebpf.AttachCgroupInet6GetPeername}}
	choosing = []hook{{"connect4", ebpf.AttachCGroupInet4Connect}, {"connect6", ebpf.AttachCGroupInet6Connect}}
	watched  = []hook{{"refused", ebpf.AttachTraceRawTp}, {"silent", ebpf.AttachTraceRawTp}}
	all      = slices.Concat(watched, choosing, noted)
)

// attach loads the programs and attaches them to a cgroup; empty: the node's. Pinned maps and links of an earlier process stay in use.
func attach(pins, cgroup string) (_ *programs, err error) {
	p := &programs{root: cgroup}
	if p.root == "" {
		if p.root, err = nodeCgroup(); err != nil {
			return nil, err
		}
	}
	if err = p.load(pins); errors.Is(err, ebpf.ErrMapIncompatible) {
		p.Close()
		if err = unpin(pins, all); err == nil {
			err = p.load(pins)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	byName := map[string]*ebpf.Program{
		"connect4": p.Connect4, "connect6": p.Connect6, "sock_release": p.SockRelease,
		"getpeername4": p.Getpeername4, "getpeername6": p.Getpeername6,
	}
	for _, h := range slices.Concat(noted, choosing) {
		l, err := p.attachOne(filepath.Join(pins, h.name), h.at, byName[h.name])
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("attach %s: %w", h.name, err)
		}
		p.links = append(p.links, l)
	}
	p.blind = p.watch(pins)
	return p, nil
}

// watch attaches the programs that see sockets fail. These links cannot be updated, so a pinned link of an earlier process
// is replaced.
func (p *programs) watch(pins string) error {
	spec, err := loadConnect()
	if err != nil {
		return err
	}
	var w watchers
	err = spec.LoadAndAssign(&w, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"fronts": p.Fronts, "slots": p.Slots, "endpoints": p.Endpoints, "socks": p.Socks, "trusted": p.Trusted, "ejections": p.Ejections,
	}})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	defer _ConnectClose(w.Refused, w.Silent)
	for i, prog := range []*ebpf.Program{w.Refused, w.Silent} {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("attach %s: %w", watched[i].name, err)
		}
		p.watching = append(p.watching, l)
		if err := errors.Join(unpin(pins, watched[i:i+1]), l.Pin(filepath.Join(pins, watched[i].name))); err != nil {
			return fmt.Errorf("pin %s: %w", watched[i].name, err)
		}
	}
	return nil
}

func (p *programs) load(pins string) error {
	if err := os.MkdirAll(pins, 0o700); err != nil {
		return fmt.Errorf("make the directory of pins: %w", err)
	}
	spec, err := loadConnect()
	if err != nil {
		return err
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinByName
	}
	var loaded struct {
		connectMaps
		choosers
	}
	if err := spec.LoadAndAssign(&loaded, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}); err != nil {
		return err
	}
	p.connectMaps, p.choosers = loaded.connectMaps, loaded.choosers
	var n connectNode
	if err := p.Settings.Lookup(uint32(0), &n); err != nil {
		return fmt.Errorf("read the node's settings: %w", err)
	}
	if n.Until > 0 && n.Layout != layout { // 0: the map is new
		return fmt.Errorf("%w: layout %d, want %d", ebpf.ErrMapIncompatible, n.Layout, layout)
	}
	return nil
}

// layoutIn returns the layout in the element of settings, whatever the version that wrote it.
func layoutIn(node []byte) uint32 {
	const at = 28
	if len(node) < at+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(node[at:])
}

// attachOne puts the program into the pinned link, or makes the link.
func (p *programs) attachOne(pin string, at ebpf.AttachType, prog *ebpf.Program) (link.Link, error) {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		if p.here(l) && l.Update(prog) == nil {
			return l, nil
		}
		_ = l.Unpin()
		_ = l.Close()
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: p.root, Attach: at, Program: prog})
	if err != nil {
		return nil, err
	}
	if err := l.Pin(pin); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("pin: %w", err)
	}
	return l, nil
}

// here reports whether a link is attached to the cgroup that the path leads to now.
func (p *programs) here(l link.Link) bool {
	info, err := l.Info()
	if err != nil || info.Cgroup() == nil {
		return false
	}
	id, err := inode(p.root)
	return err == nil && info.Cgroup().CgroupId == id
}

// attached reports whether all links are in place.
func (p *programs) attached() bool {
	for _, l := range p.links {
		if !p.here(l) {
			return false
		}
	}
	return true
}

// Close closes the file descriptors. Pinned objects stay in the kernel.
func (p *programs) Close() {
	for _, l := range slices.Concat(p.links, p.watching) {
		_ = l.Close()
	}
	_ = _ConnectClose(p.Connect4, p.Connect6, p.Getpeername4, p.Getpeername6, p.SockRelease, &p.connectMaps)
}

// lease is how long the programs choose endpoints without a sign of life from an agent. An agent in another mode may not
// have the right to detach them.
const lease = 30 * time.Second

// noteNode tells the programs which sockets are the node's and the pods', and renews the lease. The kubelet may make the
// pods' cgroup later.
func (p *programs) noteNode() error {
	netns, err := netnsCookie()
	if err != nil {
		return fmt.Errorf("get the network namespace's cookie: %w", err)
	}
	at, err := now()
	if err != nil {
		return err
	}
	n := connectNode{Netns: netns, Until: at + uint64(lease), Layout: layout}
	for _, name := range podsCgroups {
		dir := filepath.Join(p.root, name)
		if id, err := inode(dir); err == nil {
			n.Pods, n.PodsLevel, p.pods = id, level(dir), true
		}
	}
	if err := p.Settings.Put(uint32(0), n); err != nil {
		return fmt.Errorf("write the node's settings: %w", err)
	}
	return nil
}

// now returns the kernel's monotonic clock, in nanoseconds.
func now() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(t.Nano()), nil
}

// pinned reports whether programs or maps are pinned.
func pinned(pins string) bool {
	_, err := os.Stat(pins)
	return err == nil
}

// socketsLeft reports whether a translated socket is open.
func socketsLeft(pins string) bool {
	m, err := ebpf.LoadPinnedMap(filepath.Join(pins, "socks"), nil)
	if err != nil {
		return false
	}
	defer m.Close()
	var cookie uint64
	return m.NextKey(nil, &cookie) == nil
}

// unpin detaches the programs of the hooks. With all hooks it also removes the maps.
func unpin(pins string, hooks []hook) error {
	var errs []error
	for _, h := range hooks {
		if err := os.Remove(filepath.Join(pins, h.name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(hooks) == len(all) && pinned(pins) {
		errs = append(errs, os.RemoveAll(pins))
		_ = os.Remove(filepath.Dir(pins)) // unless another network namespace has pins
	}
	return errors.Join(errs...)
}

// netnsCookie returns the number by which programs know the network namespace of the calling thread.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}
