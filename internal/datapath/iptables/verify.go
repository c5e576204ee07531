package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A mismatch has the changes that a full Sync has written and would have to write again, because the kernel holds other
// rules.
type mismatch struct {
	changes string // empty: no mismatch
	pause   time.Duration
	retryAt time.Time
}

// The pause between two tries to write a mismatch doubles from firstPause to longestPause.
const firstPause, longestPause = 10 * time.Second, time.Hour

// String describes the first rule that would be written again. It is empty without a mismatch.
func (m *mismatch) String() string {
	for line := range strings.Lines(m.changes) {
		if strings.HasPrefix(line, "-A ") {
			return fmt.Sprintf("iptables-nft-restore reports success, and the kernel does not hold %q [another program writes too, the kernel is out of memory, or this version of iptables prints rules in other words]",
				strings.TrimSpace(line))
		}
	}
	return ""
}

// due reports whether it is time to write the changes again.
func (m *mismatch) due(now time.Time) bool { return m.changes != "" && !now.Before(m.retryAt) }

// readBack reads the rules that scripts have written, and fails if the kernel holds other rules. If the kernel does not
// answer which revision of a match it has, iptables-nft-restore 1.8.9 reports success, and writes a "-m mark" that
// never matches.
//
// If equal changes are left twice, a version of iptables may print our rules in other words. That must not keep a
// node from starting, so the mismatch is reported, and the changes are written again after a pause.
func (d *Datapath) readBack(ctx context.Context, groups map[group][]*service.Frontend, scripts map[bool]*script) error {
	before := d.mismatch
	d.mismatch = mismatch{}
	if d.variant != NFT || changesOf(scripts) == "" {
		return nil
	}
	states, err := read.NewSnapshot(&d.reader).All(ctx, NFT)
	if err != nil {
		return err
	}
	left, _ := d.planAll(groups, states)
	if d.mismatch.changes = changesOf(left); d.mismatch.changes == "" {
		return nil
	}
	if d.mismatch.changes != before.changes {
		return errors.New("iptables-nft-restore reported success, and the kernel holds other rules [another program writes too, or the kernel is out of memory]")
	}
	d.mismatch.pause = min(max(2*before.pause, firstPause), longestPause)
	d.mismatch.retryAt = time.Now().Add(d.mismatch.pause)
	return nil
}

// readShare bounds the time that Check spends on reading: a twentieth, also if another program writes rules all the
// time.
const readShare = 20

// Check implements datapath.Datapath.
//
// The kernel counts the changes of nf_tables, and iptables-nft and the helper are tables of nf_tables. If the count is
// the known count, the rules are unchanged. Otherwise Check reads and compares all our rules. iptables-legacy counts
// nothing, so there Check always reads.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.table == nil || d.repair != nil {
		return drift, nil // the next Sync reads or mends
	}
	if d.mismatch.due(time.Now()) {
		d.forget()
		return datapath.Drift{Retry: true}, nil
	}
	change, accept, err := d.helper.watch.Look(ctx)
	if err != nil || change == nft.Nothing && d.variant == NFT {
		return drift, err
	}
	if change == nft.Rules {
		d.forget()
		d.reloadHelper = true
		return datapath.Drift{Rules: true}, nil
	}
	intact := true
	if intact, err = d.elemsIntact(ctx, change == nft.Elements); err == nil && !intact {
		d.forget()
		return datapath.Drift{Elements: true}, nil
	}
	if err == nil {
		intact, err = d.rulesIntact(ctx, accept)
	}
	if err != nil {
		return drift, fmt.Errorf("check iptables: %w", err)
	}
	return datapath.Drift{Rules: !intact}, nil
}

// elemsIntact compares the helper's elements, if they may have changed.
func (d *Datapath) elemsIntact(ctx context.Context, mayDiffer bool) (bool, error) {
	if !mayDiffer {
		return true, nil
	}
	elems, err := d.helper.read(ctx)
	if err != nil {
		return false, err
	}
	settings, err := d.helper.settings(ctx, d.table.Settings)
	return err == nil && len(settings) == 0 && maps.Equal(elems, keys(d.helper.elems)), err
}

// rulesIntact reads and compares all our rules, if the last reading was long ago. It calls accept when it has read:
// a later change by another program has a new number. It leaves the changes for the next Sync in d.repair.
func (d *Datapath) rulesIntact(ctx context.Context, accept func()) (bool, error) {
	start := time.Now()
	if start.Before(d.nextRead) {
		return true, nil
	}
	defer func() { d.nextRead = start.Add(readShare * time.Since(start)) }()
	states, err := read.NewSnapshot(&d.reader).All(ctx, d.variant)
	if err != nil {
		return true, err
	}
	accept()
	scripts, _ := d.planAll(d.groups, states)
	if changes := changesOf(scripts); changes == "" || changes == d.mismatch.changes {
		return true, nil
	}
	d.repair = scripts
	return false, nil
}
