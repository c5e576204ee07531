// Package modes is the registry of the modes that carry Services.
//
//	--proxy-mode NAME ─→ Registry ─ Choose ─→ the datapath that carries
//	                         ├────── Others ─→ other modes, which may have left rules (package takeover)
//	                         ├────── Found ──→ modes whose rules are on the node (dump, diff)
//	                         └────── Cleanup
//
// Only this package knows the packages that implement package datapath, and their configurations. Opening a mode changes
// nothing on the node. A mode that does not work here gives a reason. The names of the modes are in package datapath, so
// that the configuration and the lab can list them without the mechanisms' code.
package modes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/ebpf"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/ipvs"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// Options configure modes; each mode takes the options that concern it. The zero value works.
type Options struct {
	// Mark is the bit of the packet mark that means "masquerade"; 0: bit 14, as in kube-proxy.
	Mark uint32
	// CountTraffic counts connections, packets and bytes in modes where counting costs time.
	CountTraffic bool
	// TCPTimeout, FinTimeout and UDPTimeout are the timeouts of IPVS; 0: the kernel's.
	TCPTimeout, FinTimeout, UDPTimeout time.Duration
	// Log gets messages about connections that a mode carries itself, and about missing kernel features. Nil: no messages.
	Log *slog.Logger
	// Gate admits connections in a mode that carries them itself. Nil: all connections may pass.
	Gate *flow.Gate
}

// A Mode is one way to carry Services.
type Mode struct {
	Name string // as in --proxy-mode
	// Open makes the mode's datapath. It does not touch the kernel.
	Open func(Options) (datapath.Datapath, error)
}

// A Registry is a list of modes, the best first: auto takes the first mode that works here.
type Registry []Mode

// All returns every mode of this program, in the order of datapath.Modes.
func All() Registry {
	return Registry{
		{datapath.NFTables, func(o Options) (datapath.Datapath, error) {
			return nftables.New(nftables.Config{Mark: o.Mark, CountTraffic: o.CountTraffic})
		}},
		{datapath.IPTables, func(o Options) (datapath.Datapath, error) {
			return iptables.New(iptables.Config{Mark: o.Mark})
		}},
		{datapath.IPVS, func(o Options) (datapath.Datapath, error) {
			return ipvs.New(ipvs.Config{Mark: o.Mark, TCPTimeout: o.TCPTimeout, FinTimeout: o.FinTimeout, UDPTimeout: o.UDPTimeout, Log: o.Log})
		}},
		{datapath.Userspace, func(o Options) (datapath.Datapath, error) {
			var mark uint32 = userspace.DefaultMark
			if mark == o.Mark { // the node masquerades by that bit
				mark = numbers.MarkUserspaceElse
			}
			return userspace.New(userspace.Config{Mark: mark, Log: o.Log, Gate: o.Gate})
		}},
		{datapath.EBPF, func(o Options) (datapath.Datapath, error) {
			return ebpf.New(ebpf.Config{Mark: o.Mark, CountTraffic: o.CountTraffic, Log: o.Log})
		}},
	}
}

// names returns the names for messages.
func (r Registry) names() string {
	all := make([]string, len(r))
	for i, m := range r {
		all[i] = m.Name
	}
	return strings.Join(all, ", ")
}

// find returns the mode of that name.
func (r Registry) find(name string) (Mode, error) {
	for _, m := range r {
		if m.Name == name {
			return m, nil
		}
	}
	return Mode{}, fmt.Errorf("proxy mode %q is not one that carries Services [choose one of %s]", name, r.names())
}

// openWorking opens a mode and probes whether it works here. This changes nothing on the node.
func (m Mode) openWorking(ctx context.Context, o Options) (datapath.Datapath, error) {
	dp, err := m.Open(o)
	if err != nil {
		return nil, err
	}
	if err := dp.Probe(ctx); err != nil {
		dp.Close()
		return nil, err
	}
	return dp, nil
}

// Choose opens the named mode. Auto takes the best mode that works here, and logs the reason.
func (r Registry) Choose(ctx context.Context, log *slog.Logger, name string, o Options) (datapath.Datapath, error) {
	if name != datapath.Auto {
		m, err := r.find(name)
		if err != nil {
			return nil, err
		}
		dp, err := m.openWorking(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("proxy mode %s does not work here: %w [--proxy-mode auto takes the best that does]", m.Name, err)
		}
		return dp, nil
	}
	var refused []string
	for _, m := range r {
		dp, err := m.openWorking(ctx, o)
		if err != nil {
			refused = append(refused, fmt.Sprintf("%s (%v)", m.Name, err))
			continue
		}
		why := "it is the best of all modes"
		if len(refused) > 0 {
			why = "it is the best that works here; not " + strings.Join(refused, ", not ")
		}
		log.Info("chose the proxy mode", "mode", m.Name, "why", why)
		return dp, nil
	}
	return nil, fmt.Errorf("no proxy mode works here: %s", strings.Join(refused, "; "))
}

// Others opens all other modes that may have left rules on this node.
func (r Registry) Others(ctx context.Context, log *slog.Logger, name string, o Options) []datapath.Datapath {
	var all []datapath.Datapath
	for _, m := range r {
		if m.Name == name {
			continue
		}
		dp, err := m.openWorking(ctx, o)
		if err != nil {
			log.Debug("not looking for what another mode left: it does not work here", "mode", m.Name, "err", err)
			continue
		}
		all = append(all, dp)
	}
	return all
}

// Found opens the modes that have rules on this node. It fails only if no mode can read its rules.
func (r Registry) Found(ctx context.Context, o Options) ([]datapath.Datapath, error) {
	var all []datapath.Datapath
	var refused []error
	for _, m := range r {
		dp, err := m.openWorking(ctx, o)
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", m.Name, err))
			continue
		}
		held, err := dp.Adopt(ctx)
		if held.Found {
			all = append(all, dp)
			continue
		}
		dp.Close()
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", m.Name, err))
		}
	}
	if len(all) == 0 && len(refused) == len(r) {
		return nil, fmt.Errorf("no mode can be looked at here: %w", errors.Join(refused...))
	}
	return all, nil
}

// Cleanup removes the rules of all modes from this node. A mode that does not work here has left nothing. A mode that
// works but cannot clean up is an error.
func (r Registry) Cleanup(ctx context.Context, log *slog.Logger, o Options) error {
	var all []error
	for _, m := range r {
		dp, err := m.Open(o)
		if err == nil {
			err = dp.Cleanup(ctx)
			dp.Close()
		}
		if err == nil {
			continue
		}
		dp, refused := m.openWorking(ctx, o)
		if refused != nil {
			log.Debug("not cleaning up after a mode that does not work here", "mode", m.Name, "err", refused)
			continue
		}
		dp.Close()
		all = append(all, fmt.Errorf("mode %s: %w", m.Name, err))
	}
	return errors.Join(all...)
}
