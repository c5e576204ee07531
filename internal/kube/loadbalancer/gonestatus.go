package loadbalancer

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

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/text"
)

// removeAfter is the shortest time from a node's death to the removal of its objects, because its speaker may be
// restarting.
const removeAfter = 10 * time.Second

// GoneStatuses removes the ServiceL2Statuses and ServiceBGPStatuses of dead nodes, and the conditions that their
// speakers wrote. The first living speaker does it. A node that comes back writes its objects again.
type GoneStatuses struct {
	log   *slog.Logger
	store *kube.Store
	nodes *kube.Feed[announce.Node]
	after time.Duration

	mu   sync.Mutex
	dead map[string]*death
	wake chan struct{}
}

// A death is the state of a dead node.
type death struct {
	since   time.Time
	removed bool
}

// GoneStatuses returns the remover of dead nodes' objects.
func (v *Speaker) GoneStatuses(log *slog.Logger) *GoneStatuses {
	return &GoneStatuses{log: log, store: v.store, nodes: v.nodes, after: removeAfter, dead: map[string]*death{}, wake: make(chan struct{}, 1)}
}

// Set replaces the list of dead nodes. It does not wait.
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
			if err := g.removeObjects(ctx, node); err != nil {
				g.log.Warn("cannot remove the announcements of a dead node, will try again", "node", node, "err", text.OneLine(err))
				continue
			}
			g.mu.Lock()
			d.removed = true
			g.mu.Unlock()
		}
		timer.Reset(next)
	}
}

// due returns the nodes to clean up now, and the time until the next check.
func (g *GoneStatuses) due() (due map[string]*death, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	due, next = map[string]*death{}, time.Hour
	for node, d := range g.dead {
		if d.removed {
			continue
		}
		wait := g.after - time.Since(d.since)
		if wait <= 0 {
			wait = g.after // the next try, or another node's turn if the first node dies too
			if g.first() {
				due[node] = d
			}
		}
		next = min(next, max(wait, time.Millisecond))
	}
	return due, next
}

// first reports whether this node is the first living node. g.mu is held.
func (g *GoneStatuses) first() bool {
	all := g.nodes.All()
	slices.SortFunc(all, func(a, b *announce.Node) int { return strings.Compare(a.Name, b.Name) })
	i := slices.IndexFunc(all, func(n *announce.Node) bool { return g.dead[n.Name] == nil })
	return i >= 0 && all[i].Name == g.store.Config().NodeName
}

// removeObjects removes a node's objects.
func (g *GoneStatuses) removeObjects(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, kube.StatusTimeout)
	defer cancel()
	for _, k := range []announceKind{l2Statuses, bgpStatuses} {
		client := k.client(g.store.Config().Custom, g.store.Config().LoadBalancerNamespace)
		list, err := client.List(ctx, announcedBy(node))
		if err != nil {
			return fmt.Errorf("list %s of node %s: %w", k.resource, node, err)
		}
		for i := range list.Items {
			if err := kube.NotGone(client.Delete(ctx, list.Items[i].GetName(), metav1.DeleteOptions{})); err != nil {
				return fmt.Errorf("delete %s %s: %w", k.kind, list.Items[i].GetName(), err)
			}
		}
		if n := len(list.Items); n > 0 {
			g.log.Info("removed the announcements of a dead node", "node", node, "kind", k.kind, "objects", n)
		}
	}
	if err := forgetStandings(ctx, g.store, stateOfSpeaker(g.store, node)); err != nil {
		return fmt.Errorf("remove the sessions of node %s: %w", node, err)
	}
	return nil
}
