package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/text"
)

// buryAfter is how long a node must be dead before others remove what it said it announces: its
// speaker may be being replaced.
const buryAfter = 10 * time.Second

// GoneStatuses remove the ServiceL2Statuses and ServiceBGPStatuses of nodes that their peers declare
// dead, and what their speakers said of sessions and grants: of the speakers that are left the first one does it. A node that is back writes its own again.
type GoneStatuses struct {
	log   *slog.Logger
	store *Store
	nodes *Feed[announce.Node]
	after time.Duration

	mu   sync.Mutex
	dead map[string]*death
	wake chan struct{}
}

// A death is a node's that is dead still.
type death struct {
	since  time.Time
	buried bool
}

// GoneStatuses returns what removes them.
func (v *Speaker) GoneStatuses(log *slog.Logger) *GoneStatuses {
	return &GoneStatuses{log: log, store: v.store, nodes: v.nodes, after: buryAfter, dead: map[string]*death{}, wake: make(chan struct{}, 1)}
}

// Set says which nodes are dead. It does not wait.
func (g *GoneStatuses) Set(dead []string) {
	g.mu.Lock()
	maps.DeleteFunc(g.dead, func(node string, _ *death) bool { return !slices.Contains(dead, node) })
	changed := len(g.dead) < len(dead)
	for _, node := range dead {
		if g.dead[node] == nil {
			g.dead[node] = &death{since: time.Now()}
		}
	}
	g.mu.Unlock()
	if changed {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// Run works until ctx ends, which is no error.
func (g *GoneStatuses) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		case <-timer.C:
		}
		due, next := g.due()
		for node, d := range due {
			if err := g.bury(ctx, node); err != nil {
				g.log.Warn("cannot remove what a dead node said it announces, will try again", "node", node, "err", text.OneLine(err))
				continue
			}
			g.mu.Lock()
			d.buried = true
			g.mu.Unlock()
		}
		timer.Reset(next)
	}
}

// due returns the nodes whose objects this node removes now, and when to look again.
func (g *GoneStatuses) due() (due map[string]*death, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	due, next = map[string]*death{}, time.Hour
	for node, d := range g.dead {
		if d.buried {
			continue
		}
		wait := g.after - time.Since(d.since)
		if wait <= 0 {
			wait = g.after // if it fails; or another one does it, unless that dies too
			if g.first() {
				due[node] = d
			}
		}
		next = min(next, max(wait, time.Millisecond))
	}
	return due, next
}

// first reports whether this node is the first that is not dead. g.mu is held.
func (g *GoneStatuses) first() bool {
	all := g.nodes.All()
	slices.SortFunc(all, func(a, b *announce.Node) int { return strings.Compare(a.Name, b.Name) })
	i := slices.IndexFunc(all, func(n *announce.Node) bool { return g.dead[n.Name] == nil })
	return i >= 0 && all[i].Name == g.store.cfg.NodeName
}

// bury removes a node's objects.
func (g *GoneStatuses) bury(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	for _, k := range []announceKind{l2Statuses, bgpStatuses} {
		client := k.client(g.store.cfg.Custom, g.store.cfg.LoadBalancerNamespace)
		list, err := client.List(ctx, announcedBy(node))
		if err != nil {
			return fmt.Errorf("list %s of node %s: %w", k.resource, node, err)
		}
		for i := range list.Items {
			if err := notGone(client.Delete(ctx, list.Items[i].GetName(), metav1.DeleteOptions{})); err != nil {
				return fmt.Errorf("delete %s %s: %w", k.kind, list.Items[i].GetName(), err)
			}
		}
		if n := len(list.Items); n > 0 {
			g.log.Info("removed what a dead node said it announces", "node", node, "kind", k.kind, "objects", n)
		}
	}
	if err := g.store.forgetStandings(ctx, g.store.stateOfSpeaker(node)); err != nil {
		return fmt.Errorf("remove the sessions of node %s: %w", node, err)
	}
	return nil
}
