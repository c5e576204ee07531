package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// verifyShare bounds the time that Check spends reading: a node where another program
// writes rules all the time must not spend more than a twentieth on it.
const verifyShare = 20

// Check implements datapath.Datapath.
//
// iptables-nft and the helper are tables of nf_tables: as long as the kernel's count of
// their changes is the one that we know, nothing has changed. Otherwise all our chains are read and compared.
// iptables-legacy counts nothing: there this is done each time.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.table == nil {
		return drift, nil // the next Sync compares anyway
	}
	if d.differs.due(time.Now()) {
		d.forget()
		return datapath.Drift{Retry: true}, nil
	}
	change, accept, err := d.helper.watch.Look(ctx)
	if err != nil || change == nft.Nothing && d.variant == NFT {
		return drift, err
	}
	if change == nft.Rules {
		d.forget() // the next Sync asks the kernel
		d.reload = true
		return datapath.Drift{Rules: true}, nil
	}
	intact := true
	if intact, err = d.helperIntact(ctx, change == nft.Elements); err == nil && !intact {
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

// helperIntact compares the helper's elements, if they may have changed.
func (d *Datapath) helperIntact(ctx context.Context, may bool) (bool, error) {
	if !may {
		return true, nil
	}
	have, err := d.helper.read(ctx)
	if err != nil {
		return false, err
	}
	settings, err := d.helper.settings(ctx, d.table.Settings)
	return err == nil && len(settings) == 0 && maps.Equal(have, keys(d.helper.elems)), err
}

// rulesIntact reads everything that iptables holds, and compares it.
func (d *Datapath) rulesIntact(ctx context.Context, accept func()) (bool, error) {
	start := time.Now()
	if start.Before(d.verify) {
		return true, nil
	}
	defer func() { d.verify = start.Add(verifyShare * time.Since(start)) }()
	s := d.newSnapshot()
	all, err := s.all(ctx, d.variant)
	if err != nil {
		return true, err
	}
	accept() // a later change by another program is noticed by the next Check, or by the next Sync
	if scripts, _ := d.planAll(d.groups, all); changesOf(scripts) != d.differs.text {
		d.table, d.adopted = nil, s
		return false, nil
	}
	return true, nil
}

// Cleanup implements datapath.Datapath. It leaves alone the rules of a kube-proxy that
// was here before us and that we never took over, or that has taken over from us.
func (d *Datapath) Cleanup(ctx context.Context) error {
	defer d.forget()
	var errs []error
	for _, v := range []Variant{NFT, Legacy} {
		for _, is4 := range families() {
			if err := d.clean(ctx, v, is4); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if len(errs) == 0 {
		errs = append(errs, d.helper.table.Delete(ctx))
	}
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("clean up iptables: %w", err)
		}
	}
	return nil
}

// clean removes what we have in one family of one variant.
func (d *Datapath) clean(ctx context.Context, v Variant, is4 bool) error {
	h, err := d.newSnapshot().of(ctx, v, is4)
	if err != nil {
		if v != d.cfg.Variant && errors.Is(err, exec.ErrNotFound) {
			return nil // this iptables is not here, so nothing of ours is in it
		}
		return err
	}
	if h.chains[chain{nat, recordings}] == nil {
		return nil
	}
	goes, leads := everyChain, everyHook
	if h.chains[chain{nat, canary}] != nil {
		goes, leads = isOwnChain, isOwnHook
	}
	s, byHandle := newScript(), []hook(nil)
	for _, one := range h.hooks {
		switch {
		case !leads(one):
		case one.handle != 0:
			byHandle = append(byHandle, one)
		default:
			s.removes(one.in.table).delete(one.in.name, []string{one.rule})
		}
	}
	if err := d.unhook(ctx, is4, byHandle); err != nil {
		return err
	}
	for _, where := range []*section{&s.nat, &s.after} {
		for _, c := range sorted(h.chains) {
			if c.table == where.table && goes(c) && c.name != recordings {
				where.deleteChain(c.name)
			}
		}
	}
	// What shows that the rest is ours goes last, in a transaction of its own: a cleanup that
	// failed in between is found by the next.
	last := newScript()
	last.nat.deleteChain(recordings)
	if err := d.restore(ctx, v, is4, s.String()+last.String()); err != nil {
		return err
	}
	if v == NFT && h.chains[chain{nat, canary}] == nil {
		return d.vacate(ctx, is4, h)
	}
	return nil
}

func everyChain(chain) bool { return true }
func everyHook(hook) bool   { return true }

// isOwnChain are the chains that kube-proxy does not have.
func isOwnChain(c chain) bool {
	return c.table == nat && (c.name == recordings || c.name == markOffCluster)
}

// isOwnHook is the hook that kube-proxy does not have, see hooks.
func isOwnHook(h hook) bool {
	return h.in == chain{filter, "OUTPUT"} && strings.HasSuffix(h.rule, "-j "+externals)
}

// vacate removes the tables that iptables-nft made for us and that no other program uses: they
// hold only the empty chains of the hooks.
func (d *Datapath) vacate(ctx context.Context, is4 bool, was *familyState) error {
	h, err := d.newSnapshot().of(ctx, NFT, is4)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, table := range slices.Sorted(maps.Keys(h.foreign)) {
		if _, used := was.foreign[table]; used && h.foreign[table] == 0 && (table == nat || table == filter) {
			fmt.Fprintf(&text, "delete table %v %s\n", family(is4), table)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return d.helper.table.Run(ctx, text.String())
}
