package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// Nodes tells a Network the cluster's nodes, level-triggered.
type Nodes interface {
	// Synced is closed when the first list of nodes is in.
	Synced() <-chan struct{}
	// Dirty receives when a node has changed.
	Dirty() <-chan struct{}
	// Peers returns all nodes, including this one if the API server knows it.
	Peers() []plan.Peer
}

// firstRetry is the pause after a first failure. The pause doubles with each further failure, up to resync.
const firstRetry = 200 * time.Millisecond

// resync is the time between two checks without a change, because other programs write routes, rules and files too. It
// is a variable for tests.
var resync = 4 * time.Second

// Run keeps the machine's part of the pod network as the nodes require. It returns nil when ctx ends. self is the name
// of this node. While the API server does not know self, Run does nothing. After a failure it tries again, after
// maxRetry at the latest.
func (n *Network) Run(ctx context.Context, self string, nodes Nodes, maxRetry time.Duration) error {
	if n.Way == plan.WayBGP {
		ctx, stop := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			n.RIB.Watch(ctx, n.announcements.notify, func(err error) { n.Log.Warn("pod network: changes of the routes by BGP are found late", "err", err) })
		})
		defer watch.Wait()
		defer stop()
	}
	return n.follow(ctx, nodes, maxRetry, func(all []plan.Peer) error {
		i := slices.IndexFunc(all, func(p plan.Peer) bool { return p.Name == self })
		if i < 0 {
			n.Log.Debug("this node is not registered yet; the pod network waits", "node", self)
			return nil
		}
		return n.Sync(ctx, all[i], all)
	})
}

// follow calls sync with the present nodes: when the nodes or the machine's networks change, when another program may
// have changed the tables, after a failure, and every resync. It rests after each pass, because each change of a Node
// object starts a pass on every node.
func (n *Network) follow(ctx context.Context, nodes Nodes, maxRetry time.Duration, sync func([]plan.Peer) error) error {
	defer n.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-nodes.Synced():
	}
	var egress <-chan struct{}
	if n.Egress != nil {
		egress = n.Egress.Dirty()
	}
	ctx, stop := context.WithCancel(ctx)
	networks := make(notice, 1)
	wait, err := watchNetworks(ctx, networks.notify)
	if err != nil {
		n.Log.Warn("pod network: routes that a link has lost are restored late", "err", err)
	}
	defer wait()
	defer stop()
	pause := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-nodes.Dirty():
		case <-n.announcements:
		case <-networks:
		case <-egress:
		case <-n.TablesChanged:
		case <-timer.C:
		}
		start := time.Now()
		if err := sync(nodes.Peers()); err != nil && ctx.Err() == nil {
			n.Log.Error("the pod network is not complete, will try again", "err", err, "again", pause)
			timer.Reset(pause)
			pause = min(2*pause, maxRetry, resync)
		} else {
			pause = firstRetry
			timer.Reset(resync)
		}
		if fair.Rest(ctx, time.Since(start), networks) { // a link that was down has lost its routes
			networks.notify()
		}
	}
}

// A notice receives a value when its subject may have changed.
type notice chan struct{}

func (s notice) notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
