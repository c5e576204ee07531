package obstacles

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// reasonDropped is the reason of the events.
const reasonDropped = "ForwardingDropped"

// interval is the time between two looks.
const interval = 4 * time.Second

// A Watcher looks for chains of other programs that drop forwarded packets unless a rule accepts them.
type Watcher struct {
	Log *slog.Logger
	// Pods returns the address ranges of the pods whose packets the node forwards. A family without a range has no pods.
	// If there is no range at all, the pods are not known, and no rule is taken to accept them.
	Pods func() []netip.Prefix
	// Registry gets the metric fairway_forwarding_dropped. Nil: nothing is measured.
	Registry prometheus.Registerer
	// Event gets each chain once while the chain is there.
	Event func(reason, message string)
	// Now gets all messages after each look that found a change. Empty: there is no obstacle.
	Now func(message string)

	known map[string]bool // the messages of the last look
	last  map[chainID]lastRule
}

// A chainID names a chain in the kernel.
type chainID struct {
	family       nft.Family
	table, chain string
}

// A lastRule is the last rule of a chain with policy accept. ends says that it drops or rejects every packet that reaches it.
type lastRule struct {
	handle uint64
	hash   uint64
	ends   bool
}

// Run looks every few seconds, in the network namespace of the caller's thread. It returns nil when ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "forwarding_dropped",
		Help: "Chains of other programs that drop forwarded packets without a rule that accepts all packets of the pods",
	})
	if w.Registry != nil {
		w.Registry.MustRegister(count)
	}
	var reader nft.Reader
	defer reader.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		// An error is not logged: the programs that write rules meet the same one and say so.
		if found, err := w.findObstacles(ctx, &reader, w.Pods()); err == nil {
			count.Set(float64(len(found)))
			w.report(found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// report reports the messages that are new since the last look.
func (w *Watcher) report(found []string) {
	changed := len(found) != len(w.known)
	now := make(map[string]bool, len(found))
	for _, message := range found {
		now[message] = true
		if w.known[message] {
			continue
		}
		changed = true
		w.Log.Warn("another program drops packets of pods and Services: " + message)
		w.Event(reasonDropped, message)
	}
	w.known = now
	if changed {
		w.Now(strings.Join(found, "; "))
	}
}

// findObstacles returns a message for each chain that drops packets of the pods: by its policy, or by its last rule.
func (w *Watcher) findObstacles(ctx context.Context, r *nft.Reader, pods []netip.Prefix) (found []string, err error) {
	if w.last == nil {
		w.last = map[chainID]lastRule{}
	}
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6, nft.Inet} {
		var chains []nft.Chain
		err := r.Chains(ctx, family, "", func(c nft.Chain) error {
			if c.Base && c.Hook == unix.NF_INET_FORWARD && (c.Drop || c.Use > 0 && !strings.HasPrefix(c.Table, ownTables)) {
				chains = append(chains, c)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			ends, err := w.ends(ctx, r, family, c)
			if err != nil {
				return nil, err
			}
			if !c.Drop && !ends {
				continue
			}
			if what := dropsOf(ctx, family, c, pods); what != "" {
				found = append(found, fmt.Sprintf("chain %s of table %s %s drops what no rule in it accepts%s [Docker and firewalls do this: accept the podCIDRs there, as with `iptables -I FORWARD -s PODCIDR -j ACCEPT` and -d PODCIDR, or firewall-cmd --zone=trusted --add-source=PODCIDR]", c.Name, family, c.Table, what))
			}
		}
	}
	return found, nil
}

// ownTables is the prefix of the names of Fairway's tables.
const ownTables = "fairway"

// ends reports whether the last rule of a chain drops or rejects every packet that reaches it. It starts the program nft only
// if that rule is new.
func (w *Watcher) ends(ctx context.Context, r *nft.Reader, family nft.Family, c nft.Chain) (bool, error) {
	id, now := chainID{family, c.Table, c.Name}, lastRule{}
	err := r.Rules(ctx, family, c.Table, c.Name, func(rule nft.Rule) error {
		now.handle, now.hash = rule.Handle, rule.Hash
		return nil
	})
	if err != nil || now.handle == 0 {
		return false, err
	}
	if was := w.last[id]; was.handle == now.handle && was.hash == now.hash {
		return was.ends, nil
	}
	text, err := nft.List(ctx, family, c.Table)
	if err != nil {
		return false, err
	}
	rules, err := readFirewall(text)
	if err != nil {
		return false, err
	}
	now.ends = rules.ends(c.Name)
	if len(w.last) >= maxChains {
		clear(w.last)
	}
	w.last[id] = now
	return now.ends, nil
}

// LastRuleDrops returns the base chains of other programs at the hooks input and forward whose policy is accept, and whose last
// rule drops or rejects every packet that reaches it.
func LastRuleDrops(ctx context.Context) (all []string, err error) {
	var r nft.Reader
	defer r.Close()
	w := Watcher{last: map[chainID]lastRule{}}
	hooks := map[uint32]string{unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward"}
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6, nft.Inet} {
		var chains []nft.Chain
		err := r.Chains(ctx, family, "", func(c nft.Chain) error {
			if c.Base && hooks[c.Hook] != "" && !c.Drop && !strings.HasPrefix(c.Table, ownTables) {
				chains = append(chains, c)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			ends, err := w.ends(ctx, &r, family, c)
			if err != nil {
				return nil, err
			}
			if ends {
				all = append(all, fmt.Sprintf("nft %s %s %s (%s, by its last rule)", family, c.Table, c.Name, hooks[c.Hook]))
			}
		}
	}
	return all, nil
}

// maxChains is the number of chains whose last rule is remembered.
const maxChains = 1000

// dropsOf names the packets of the pods that a chain, which drops the packets that no rule accepts, does not accept for certain. Empty: it accepts
// all of them.
func dropsOf(ctx context.Context, family nft.Family, c nft.Chain, pods []netip.Prefix) string {
	if len(pods) == 0 {
		return ", packets of pods and Services too"
	}
	var ours []netip.Prefix
	for _, p := range pods {
		if family == nft.Inet || p.Addr().Is4() == (family == nft.IPv4) {
			ours = append(ours, p)
		}
	}
	if len(ours) == 0 {
		return ""
	}
	var rules firewall
	text, err := nft.List(ctx, family, c.Table)
	if err == nil {
		rules, err = readFirewall(text)
	}
	if err != nil {
		return fmt.Sprintf("; which those are cannot be read: %v", err)
	}
	var all []string
	for _, p := range rules.missing(c.Name, ours) {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		return ""
	}
	return ": packets " + strings.Join(all, ", ")
}
