package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// unhook deletes rules in others' chains that lead to ours, by their handles. iptables-nft finds a
// rule by its text, and does not find one with an older revision of a match than it would write
// now: it writes such a rule when the kernel could not say, for lack of memory, which it has.
func (d *Datapath) unhook(ctx context.Context, is4 bool, hooks []hook) error {
	targets := map[chain]map[string]bool{}
	for _, one := range hooks {
		if targets[one.in] == nil {
			targets[one.in] = map[string]bool{}
		}
		targets[one.in][xtables.Target(one.rule)] = true
	}
	var text strings.Builder
	for _, in := range sorted(targets) {
		err := d.handleWatch.reader.nft.Rules(ctx, family(is4), in.table, in.name, func(r nft.Rule) error {
			if targets[in][r.Jump] {
				fmt.Fprintf(&text, "delete rule %v %s %s handle %d\n", family(is4), in.table, in.name, r.Handle)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return d.helper.table.Run(ctx, text.String())
}

// write gives one family's text to iptables-restore.
func (d *Datapath) write(ctx context.Context, is4 bool, text string) error {
	restore := func() error { return d.restore(ctx, d.variant, is4, text) }
	if d.variant == Legacy {
		return restore()
	}
	return d.helper.watch.RunAsOurs(ctx, uint32(strings.Count(text, "COMMIT\n")), restore)
}

// writeAndUnhook writes a script that failed once more, without deleting hooks, which then go by their
// handles: unhook says why their text may not be found. So packets meet both hooks for a moment,
// which changes nothing for them. failed is the error that is returned where the hooks are not why.
func (d *Datapath) writeAndUnhook(ctx context.Context, is4 bool, s *script, failed error) error {
	text, err := d.deletions(ctx, is4, s.unhooks)
	if err != nil || text == "" {
		return errors.Join(failed, err)
	}
	if rest := s.withoutUnhooks().String(); rest != "" {
		if err := d.write(ctx, is4, rest); err != nil {
			return err
		}
	}
	return d.helper.table.Run(ctx, text)
}

// withoutUnhooks is the script without the deletion of hooks.
func (s *script) withoutUnhooks() *script {
	rest := *s
	for _, part := range rest.sections() {
		part.rules = slices.DeleteFunc(slices.Clone(part.rules), func(line string) bool {
			return slices.ContainsFunc(s.unhooks, func(h hook) bool {
				return h.in.table == part.table && line == "-D "+h.in.name+" "+h.rule
			})
		})
	}
	return &rest
}

// deletions is what nft reads to delete some of the hooks that are in the kernel. Which handle a
// text has, its place says: the n-th rule of a chain that leads to one of ours is the n-th in both.
func (d *Datapath) deletions(ctx context.Context, is4 bool, some []hook) (string, error) {
	h, err := d.newSnapshot().of(ctx, NFT, is4)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	left := slices.Clone(some)
	places := map[chain][]hook{}
	for _, one := range h.hooks {
		places[one.in] = append(places[one.in], one)
	}
	for _, in := range sorted(places) {
		at := 0
		err := d.handleWatch.reader.nft.Rules(ctx, family(is4), in.table, in.name, func(r nft.Rule) error {
			if !isOurs(chain{in.table, r.Jump}) {
				return nil
			}
			if at == len(places[in]) || xtables.Target(places[in][at].rule) != r.Jump {
				return fmt.Errorf("rules of chain %s changed while they were read", in.name)
			}
			if i := slices.Index(left, places[in][at]); i >= 0 {
				left = slices.Delete(left, i, i+1)
				fmt.Fprintf(&text, "delete rule %v %s %s handle %d\n", family(is4), in.table, in.name, r.Handle)
			}
			at++
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return text.String(), nil
}
