package hostport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/service"
)

// recheck is the time between two reads without a notice, because the kernel drops notices when many come at once. It is
// a variable for tests.
var recheck = 30 * time.Second

// retry is the pause after an error.
const retry = 2 * time.Second

// A Reader reads records and addresses. It must be made and run in one network namespace.
type Reader struct {
	log    *slog.Logger
	dir    string
	dirty  chan struct{}
	now    atomic.Pointer[service.HostPorts]
	logged string // the last logged error

	// TablesChanged receives when another program may have changed the kernel's table. Nil: only a timer finds changes.
	TablesChanged <-chan struct{}
}

// New returns a Reader of a node's address store, after reading it once (cni.HostPortsDir is below the store). Only Run
// notices changes.
func New(log *slog.Logger, store string) *Reader {
	r := &Reader{log: log, dir: cni.HostPortsDir(store), dirty: make(chan struct{}, 1)}
	r.now.Store(&service.HostPorts{})
	r.read(nil)
	return r
}

// Dirty receives when the result of Now changes.
func (r *Reader) Dirty() <-chan struct{} { return r.dirty }

// Now returns the pods' ports on the node's addresses.
func (r *Reader) Now() service.HostPorts { return *r.now.Load() }

// UID returns the UID of a pod with ports on the node's addresses. Empty: it is not known.
func (r *Reader) UID(pod api.Name) string {
	pods := r.now.Load().Pods
	i := slices.IndexFunc(pods, func(p service.HostPod) bool { return p.Name == pod })
	if i < 0 {
		return ""
	}
	return pods[i].UID
}

// Run follows changes and serves loopback addresses until ctx ends. It returns nil.
func (r *Reader) Run(ctx context.Context) error {
	files, err := fsnotify.NewWatcher()
	if err != nil {
		r.log.Warn("changes of host ports are found late [raise fs.inotify.max_user_instances]", "within", recheck, "err", err)
		files = &fsnotify.Watcher{} // its channels never receive
	} else {
		defer files.Close()
	}
	done := make(chan struct{})
	defer close(done)
	addrs := make(chan netlink.AddrUpdate, 64)
	subscribeErr := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) { r.log.Debug("a notice of the node's addresses was lost", "err", err) },
	})
	if subscribeErr != nil {
		r.log.Warn("changes of the node's addresses are found late", "within", recheck, "err", subscribeErr)
	}
	loopback := NewLoopback(r.log, "hostPort")
	defer loopback.Close()
	rules := newRules()
	defer rules.Close()
	again := time.NewTimer(recheck)
	defer again.Stop()
	var failed error
	for {
		if err == nil {
			failed = errors.Join(failed, r.watch(files))
		}
		r.read(failed)
		ports := r.Now().Loopback()
		loopback.Serve(backends(ports))
		again.Reset(recheck)
		if failed = rules.sync(ctx, ports); failed != nil {
			again.Reset(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		case <-r.TablesChanged:
		case _, ok := <-addrs:
			if !ok {
				addrs = nil // the socket failed; recheck still works
			}
		case <-files.Events:
		case err := <-files.Errors:
			r.log.Debug("a notice of host ports was lost", "err", err)
		}
	}
}

// backends converts ports that lead to one pod each.
func backends(ports map[service.Key]netip.AddrPort) map[service.Key]Backends {
	all := make(map[service.Key]Backends, len(ports))
	for k, to := range ports {
		all[k] = To(to)
	}
	return all
}

// watch makes files watch the directory of records and its parents. The directory appears with the first pod with host
// ports, its parents with the first pod.
func (r *Reader) watch(files *fsnotify.Watcher) (failed error) {
	store := filepath.Dir(r.dir)
	// Parents come first: then a directory that is made after its parent is watched is noticed.
	for _, dir := range []string{filepath.Dir(store), store, r.dir} {
		if slices.Contains(files.WatchList(), dir) {
			continue
		}
		if err := files.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("watch %s: %w; changes are found within %v", dir, err, recheck))
		}
	}
	return failed
}

// read publishes the present state. It logs failed and its own errors.
func (r *Reader) read(failed error) {
	records, recordsErr := cni.ReadHostPorts(r.dir)
	pods, podsErr := podsOf(records)
	was := r.Now()
	now := service.HostPorts{Pods: pods, Addrs: was.Addrs}
	own, addrsErr := ownAddrs()
	if addrsErr == nil {
		now.Addrs = own
	}
	r.complain(errors.Join(failed, recordsErr, podsErr, addrsErr))
	equal := func(a, b service.HostPod) bool { return a.Equal(&b) }
	if slices.Equal(was.Addrs, now.Addrs) && slices.EqualFunc(was.Pods, now.Pods, equal) {
		return
	}
	r.now.Store(&now)
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// complain logs an error once while it lasts.
func (r *Reader) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.logged {
		r.log.Warn("cannot read some host ports, or finds their changes late", "err", err)
	}
	r.logged = text
}

// podsOf converts records. Of several records of one pod name the newest counts, because a static pod that is made
// again keeps its name.
func podsOf(records []cni.HostPorts) ([]service.HostPod, error) {
	slices.SortFunc(records, func(a, b cni.HostPorts) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), b.Created.Compare(a.Created))
	})
	records = slices.CompactFunc(records, func(a, b cni.HostPorts) bool { return a.Pod == b.Pod })
	var pods []service.HostPod
	var failed error
	for _, rec := range records {
		name, err := api.ParseName(rec.Pod)
		if err != nil {
			name = api.Name{Name: rec.Pod} // the container's id
		}
		p := service.HostPod{Name: name, UID: rec.UID, Created: rec.Created.Unix(), Addrs: service.NewAddrSet(rec.Addresses...)}
		for _, m := range rec.Ports {
			port, err := portOf(m)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("host ports of pod %s: %w", rec.Pod, err))
				continue
			}
			p.Ports = append(p.Ports, port)
		}
		pods = append(pods, p)
	}
	return pods, failed
}

func portOf(m cni.PortMapping) (service.HostPort, error) {
	proto, err := api.ParseProto(m.Protocol)
	if err != nil {
		return service.HostPort{}, err
	}
	p := service.HostPort{Proto: proto, Port: m.HostPort, To: m.ContainerPort}
	if m.HostIP != "" {
		p.Addr, err = netip.ParseAddr(m.HostIP)
	}
	return p, err
}

// ownAddrs returns the node's addresses that other machines can reach. Link-local addresses are left out, because they
// need a link, and no table has links.
func ownAddrs() (service.AddrSet, error) {
	all, err := netlinksafe.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			continue
		}
		own = append(own, ip)
	}
	return service.NewAddrSet(own...), nil
}
