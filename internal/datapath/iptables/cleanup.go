package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// Cleanup implements datapath.Datapath. It leaves kube-proxy's rules alone if Fairway never took them over, or if
// kube-proxy has taken them over again: kube-proxy's canary shows that.
func (d *Datapath) Cleanup(ctx context.Context) error {
	defer d.forget()
	var errs []error
	for _, v := range []Variant{NFT, Legacy} {
		for _, is4 := range read.Families() {
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

// clean removes our chains and hooks from one family of one variant.
func (d *Datapath) clean(ctx context.Context, v Variant, is4 bool) error {
	kernel, err := read.NewSnapshot(&d.reader).Of(ctx, v, is4)
	if err != nil {
		if v != d.cfg.Variant && errors.Is(err, exec.ErrNotFound) {
			return nil // this iptables is not installed, so it has no rules of ours
		}
		return err
	}
	if !kernel.Fairway() {
		return nil
	}
	_, kubeProxyTookOver := kernel.Chains[natChain(xtables.KubeProxyCanary)]
	s, byHandle := newScript(), []hook(nil)
	for _, h := range kernel.Hooks {
		switch {
		case kubeProxyTookOver && !onlyFairwayHas(h):
		case h.Handle != 0:
			byHandle = append(byHandle, h)
		default:
			s.removes(h.In.Table).delete(h.In.Name, []string{h.Rule})
		}
	}
	if err := d.unhook(ctx, is4, byHandle); err != nil {
		return err
	}
	for _, c := range sorted(kernel.Chains) {
		isLast := c.Name == xtables.FairwaySettings
		if !isLast && (!kubeProxyTookOver || c == natChain(read.OffCluster)) {
			s.removes(c.Table).deleteChain(c.Name)
		}
	}
	// The chain FAIRWAY goes last, in a transaction of its own: after an error the next Cleanup still finds it.
	last := newScript()
	last.nat.deleteChain(xtables.FairwaySettings)
	if err := d.restore(ctx, v, is4, s.String()+last.String()); err != nil {
		return err
	}
	if v == NFT && !kubeProxyTookOver {
		return d.deleteEmptyTables(ctx, is4, kernel)
	}
	return nil
}

// onlyFairwayHas reports whether kube-proxy does not have a hook.
func onlyFairwayHas(h hook) bool {
	return h.In == filterChain("OUTPUT") && strings.HasSuffix(h.Rule, "-j "+xtables.KubeExternalServices)
}

// deleteEmptyTables deletes tables that iptables-nft made for us and that no other program uses. They hold nothing but
// empty base chains. before is the state before the cleanup.
func (d *Datapath) deleteEmptyTables(ctx context.Context, is4 bool, before *read.State) error {
	after, err := read.NewSnapshot(&d.reader).Of(ctx, NFT, is4)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, table := range slices.Sorted(maps.Keys(after.Foreign)) {
		if _, existed := before.Foreign[table]; existed && after.Foreign[table] == 0 && (table == nat || table == filter) {
			fmt.Fprintf(&text, "delete table %v %s\n", read.Family(is4), table)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return d.helper.table.Run(ctx, text.String())
}
