package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/ipvs"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
)

// A mode is one way to carry Services, by its name in --proxy-mode.
type mode struct {
	name string
	open func(*config.Config) (datapath.Datapath, error)
}

// A modeTable is every mode of this program, the best first: --proxy-mode auto takes the
// first that works here.
type modeTable []mode

func modes() modeTable {
	return modeTable{
		{config.ModeNFTables, func(c *config.Config) (datapath.Datapath, error) {
			return nftables.New(nftables.Config{Mark: c.Mask(), CountTraffic: c.CountTraffic})
		}},
		{config.ModeIPTables, func(c *config.Config) (datapath.Datapath, error) {
			return iptables.New(iptables.Config{Mark: c.Mask()})
		}},
		{config.ModeIPVS, func(c *config.Config) (datapath.Datapath, error) {
			return ipvs.New(ipvs.Config{Mark: c.Mask(), TCPTimeout: c.IPVS.TCP, FinTimeout: c.IPVS.TCPFin, UDPTimeout: c.IPVS.UDP})
		}},
		{config.ModeUserspace, func(c *config.Config) (datapath.Datapath, error) {
			var mark uint32 = userspace.DefaultMark
			if mark == c.Mask() { // which means something else to those who set it
				mark >>= 1
			}
			return userspace.New(userspace.Config{Mark: mark})
		}},
	}
}

// names returns the names, for messages.
func (t modeTable) names() string {
	all := make([]string, len(t))
	for i, m := range t {
		all[i] = m.name
	}
	return strings.Join(all, ", ")
}

// find returns the mode of that name.
func (t modeTable) find(name string) (mode, error) {
	for _, m := range t {
		if m.name == name {
			return m, nil
		}
	}
	return mode{}, fmt.Errorf("proxy mode %q is not one that carries Services [choose one of %s]", name, t.names())
}

// works opens a mode and finds out whether it works here. That changes nothing.
func (m mode) works(ctx context.Context, cfg *config.Config) (datapath.Datapath, error) {
	dp, err := m.open(cfg)
	if err != nil {
		return nil, err
	}
	if err := dp.Probe(ctx); err != nil {
		dp.Close()
		return nil, err
	}
	return dp, nil
}

// choose opens the mode that the configuration asks for. Auto becomes the best one that
// works here, and the log says why.
func (t modeTable) choose(ctx context.Context, log *slog.Logger, cfg *config.Config) (datapath.Datapath, error) {
	if cfg.Mode != config.ModeAuto {
		m, err := t.find(cfg.Mode)
		if err != nil {
			return nil, err
		}
		dp, err := m.works(ctx, cfg)
		if err != nil {
			return nil, fmt.Errorf("proxy mode %s does not work here: %w [--proxy-mode auto takes the best that does]", m.name, err)
		}
		return dp, nil
	}
	var refused []string
	for _, m := range t {
		dp, err := m.works(ctx, cfg)
		if err != nil {
			refused = append(refused, fmt.Sprintf("%s (%v)", m.name, err))
			continue
		}
		why := "it is the best of all modes"
		if len(refused) > 0 {
			why = "it is the best that works here; not " + strings.Join(refused, ", not ")
		}
		log.Info("chose the proxy mode", "mode", m.name, "why", why)
		cfg.Mode = m.name
		return dp, nil
	}
	return nil, fmt.Errorf("no proxy mode works here: %s", strings.Join(refused, "; "))
}

// others opens the modes, beside the one of that name, that may have left something on
// this node.
func (t modeTable) others(ctx context.Context, log *slog.Logger, cfg *config.Config, name string) []datapath.Datapath {
	var all []datapath.Datapath
	for _, m := range t {
		if m.name == name {
			continue
		}
		dp, err := m.works(ctx, cfg)
		if err != nil {
			log.Debug("not looking for what another mode left: it does not work here", "mode", m.name, "err", err)
			continue
		}
		all = append(all, dp)
	}
	return all
}

// found opens the modes whose rules are on this node.
func (t modeTable) found(ctx context.Context, cfg *config.Config) ([]datapath.Datapath, error) {
	var all []datapath.Datapath
	var refused []error
	for _, m := range t {
		dp, err := m.works(ctx, cfg)
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		held, err := dp.Adopt(ctx)
		if held.Found {
			all = append(all, dp)
			continue
		}
		dp.Close()
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	if len(all) == 0 && len(refused) == len(t) {
		return nil, fmt.Errorf("no mode can be looked at here: %w", errors.Join(refused...))
	}
	return all, nil
}

// cleanup removes what any mode left.
func (t modeTable) cleanup(ctx context.Context, log *slog.Logger, cfg *config.Config) error {
	var all []error
	for _, m := range t {
		dp, err := m.open(cfg)
		if err == nil {
			err = dp.Cleanup(ctx)
			dp.Close()
		}
		if err == nil {
			continue
		}
		// A mode that does not work here has left nothing here either; but one that does
		// must be able to clean up.
		dp, worksNot := m.works(ctx, cfg)
		if worksNot != nil {
			log.Debug("not cleaning up after a mode that does not work here", "mode", m.name, "err", worksNot)
			continue
		}
		dp.Close()
		all = append(all, fmt.Errorf("mode %s: %w", m.name, err))
	}
	return errors.Join(all...)
}
