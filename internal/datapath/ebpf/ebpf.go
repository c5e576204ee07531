package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultPins is the directory of the pinned programs and maps. Each network namespace has its own directory below it,
// because several nodes may share one kernel.
const DefaultPins = "/sys/fs/bpf/fairway"

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade". 0: bit 14.
	Mark uint32
	// CountTraffic counts connections, packets and bytes. nf_tables counts, so all connections are left to it.
	CountTraffic bool
	// Pins is a directory in a bpffs. Empty: DefaultPins.
	Pins string
	// Cgroup is the cgroup of version 2 whose sockets are translated. Empty: the node's.
	Cgroup string
	// Log gets one message if connect time does not work here. Nil: no messages.
	Log *slog.Logger
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	*nftables.Datapath
	cfg      Config
	prog     *programs      // nil: not loaded, or it does not work here
	noPods   bool           // the log has said that the pods' cgroup is not known
	failed   bool           // the programs do not work here; nf_tables serves alone
	full     bool           // the log has said that a map is full
	table    *service.Table // the table in the maps; nil: unknown, the next Sync reads them
	unused   unused
	suspects suspects
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not access the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Pins == "" {
		cfg.Pins = DefaultPins
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	nft, err := nftables.New(nftables.Config{Mark: cfg.Mark, CountTraffic: cfg.CountTraffic, Table: numbers.TableEBPF})
	return &Datapath{Datapath: nft, cfg: cfg}, err
}

// Info implements datapath.Datapath.
func (d *Datapath) Info() datapath.Info {
	info := d.Datapath.Info()
	info.Name = datapath.EBPF
	if !d.cfg.CountTraffic {
		info.Capabilities.Algorithms |= counting
	}
	return info
}

// Sync implements datapath.Datapath. From the moment in which a frontend changes until both parts have it, nf_tables
// serves it alone.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	if err := d.start(); err != nil {
		d.failed = true
		d.cfg.Log.Warn("connect time does not work here, nf_tables carries all connections, and lc, sed and nq choose at random [mount a bpffs at /sys/fs/bpf and cgroup2, and run the agent with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN]", "err", err)
	}
	if d.prog == nil {
		return d.Datapath.Sync(ctx, want)
	}
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.table = nil
		return stats, fmt.Errorf("sync ebpf: %w", err)
	}
	d.table = want
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	if err := d.prog.noteNode(); err != nil {
		return datapath.Stats{}, err
	}
	if !d.prog.pods && !d.noPods {
		d.noPods = true
		d.cfg.Log.Warn("pods do not get endpoints at connect time, because their cgroup is not known; nf_tables carries their connections [check that cgroup2 has kubepods or kubepods.slice in this directory]", "cgroup", d.prog.root)
	}
	full := d.table == nil || !d.table.Settings.Equal(want.Settings)
	withdraw, publish := d.withdrawChanged, d.publishChanged
	if full {
		withdraw, publish = d.withdrawStale, d.publishAll
	}
	deleted, err := withdraw(want)
	if err != nil {
		return datapath.Stats{Deleted: deleted}, fmt.Errorf("withdraw frontends: %w", err)
	}
	stats, err := d.Datapath.Sync(ctx, want)
	stats.Deleted += deleted
	stats.Full = stats.Full || full
	if err != nil {
		return stats, err
	}
	added, err := publish(want)
	stats.Added += added
	if err != nil {
		return stats, fmt.Errorf("publish frontends: %w", err)
	}
	return stats, nil
}

// start loads and attaches the programs, if this process has not tried yet.
func (d *Datapath) start() (err error) {
	if d.cfg.CountTraffic {
		return unpin(d.pins(), all)
	}
	if d.prog != nil || d.failed {
		return nil
	}
	d.prog, err = attach(d.pins(), d.cfg.Cgroup)
	if err != nil {
		return errors.Join(err, unpin(d.pins(), all)) // no program without an agent that keeps its maps
	}
	if d.prog.blind != nil {
		d.cfg.Log.Warn("endpoints that fail connections are not ejected here [check that the kernel has BTF, and the agent CAP_PERFMON]", "err", d.prog.blind)
	}
	return nil
}

// pins returns the directory of this network namespace. A kernel without the cookie is too old for the programs.
func (d *Datapath) pins() string {
	cookie, _ := netnsCookie()
	return filepath.Join(d.cfg.Pins, strconv.FormatUint(cookie, 10))
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	held, err := d.Datapath.Adopt(ctx)
	held.Found = held.Found || pinned(d.pins())
	return held, err
}

// Check implements datapath.Datapath. A cgroup that was removed and made again has lost the programs.
// Check renews the programs' lease.
func (d *Datapath) Check(ctx context.Context) (datapath.Drift, error) {
	drift, err := d.Datapath.Check(ctx)
	if err != nil || d.prog == nil {
		return drift, err
	}
	if d.prog.attached() {
		return drift, errors.Join(d.prog.noteNode(), d.sweep())
	}
	d.forget()
	drift.Rules = true
	return drift, nil
}

// Explain implements datapath.Datapath. It also works in a process that has not loaded the programs.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	all, err := d.Datapath.Explain(ctx, k)
	if err != nil {
		return all, err
	}
	front, err := explainFront(d.pins(), k)
	return append(all, front...), err
}

// Drain implements datapath.Datapath. Connections that the programs made go on by themselves. Only getpeername still
// needs them, until the last of these sockets is closed.
func (d *Datapath) Drain(ctx context.Context) (bool, error) {
	open := socketsLeft(d.pins())
	d.forget()
	if !open {
		return datapath.Drained(d.Cleanup(ctx))
	}
	return false, errors.Join(unpin(d.pins(), slices.Concat(watched, choosing)), d.Datapath.Cleanup(ctx))
}

// Cleanup implements datapath.Datapath. The programs go first, so that no socket gets a stale endpoint.
func (d *Datapath) Cleanup(ctx context.Context) error {
	d.forget()
	return errors.Join(unpin(d.pins(), all), d.Datapath.Cleanup(ctx))
}

// Close implements datapath.Datapath.
func (d *Datapath) Close() {
	d.forget()
	d.Datapath.Close()
}

// forget closes the programs in this process. The kernel keeps them by their pins.
func (d *Datapath) forget() {
	if d.prog != nil {
		d.prog.Close()
	}
	d.prog, d.table = nil, nil
	d.suspects.close()
}
