package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/service"
)

// A Check is the answer to load balancers on the healthCheckNodePort of a Service. A load balancer that asks over IPv4
// sends IPv4 traffic, and gets the number of that family's endpoints.
type Check = service.HealthCheck

// Applied is the table that the datapath carries, level-triggered.
type Applied interface {
	Table() *service.Table      // nil: none yet
	Subscribe() <-chan struct{} // receives when Table may have changed
}

// NodePortConfig configures NodePortChecks.
type NodePortConfig struct {
	Log     *slog.Logger
	State   *State
	Applied Applied // source of the checks for Run
	// Problem is called when a Service's port cannot be opened, once for each reason. Sync calls it: it must not call back
	// and should not wait. Nil: problems are only logged.
	Problem func(api.Name, api.Problem)
}

// NodePortChecks answer load balancers on the healthCheckNodePorts of Services with externalTrafficPolicy: Local. The
// answer is 200 if the node has endpoints of the Service, and 503 if it has none or is not healthy itself.
type NodePortChecks struct {
	cfg NodePortConfig

	mu     sync.Mutex
	open   map[api.Name]*check
	ended  bool // Run has ended: no port is opened any more
	served sync.WaitGroup
	limit  *listener.Limit // for the connections of all checks
}

// A check is one Service's open port. Its fields are guarded by NodePortChecks.mu.
type check struct {
	name                   api.Name
	port                   uint16
	endpoints4, endpoints6 int
	servers                map[listenAddr]running
	limit                  *listener.Limit
	failed                 string // the reported reason why a port is not open; empty: all are open
}

// NewNodePortChecks returns checks without open ports.
func NewNodePortChecks(cfg NodePortConfig) *NodePortChecks {
	if cfg.Problem == nil {
		cfg.Problem = func(api.Name, api.Problem) {}
	}
	limit := listener.NewLimit(maxConnsOfChecks, maxConnsOfChecks, maxConnsOfChecks)
	return &NodePortChecks{cfg: cfg, open: map[api.Name]*check{}, limit: limit}
}

// maxConnsOfCheck limits the connections to one Service's port, maxConnsOfChecks those to all ports together.
const maxConnsOfCheck, maxConnsOfChecks = 128, 4096

// openAgain is the pause before the next try to open a port.
const openAgain = 2 * time.Second

// Run keeps the checks equal to the applied table until ctx ends, and then closes all ports. If a port cannot be
// opened, it tries again.
func (n *NodePortChecks) Run(ctx context.Context) error {
	changed := n.cfg.Applied.Subscribe()
	retry := time.NewTimer(0)
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			n.end(ctx)
			return nil
		case <-changed:
		case <-retry.C:
		}
		table := n.cfg.Applied.Table()
		if table == nil {
			continue
		}
		if n.Sync(table.Settings.NodePorts, table.HealthChecks) {
			retry.Stop()
		} else {
			retry.Reset(openAgain)
		}
	}
}

// end closes all ports.
func (n *NodePortChecks) end(ctx context.Context) {
	n.mu.Lock()
	n.ended = true
	var all []running
	for _, c := range n.open {
		all = slices.AppendSeq(all, maps.Values(c.servers))
	}
	n.mu.Unlock()

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, r := range all {
		n.served.Go(func() {
			if r.server.Shutdown(grace) != nil {
				_ = r.server.Close() // a client that is still there is cut off
			}
			_ = r.listener.Close() // Serve may not have begun
		})
	}
	n.served.Wait()
}

// Sync makes the open ports equal to checks. It listens on the addresses of this machine that lie in addrs, which has
// the form of service.Settings.NodePorts. 0.0.0.0/0 and ::/0 are all addresses of a family, and no prefix means no
// address.
//
// If a port cannot be opened, Sync reports a Problem and returns false: call it again. The other ports work. Sync does
// not wait for clients. After Run has ended it does nothing.
func (n *NodePortChecks) Sync(addrs []netip.Prefix, checks []Check) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return true
	}
	want := make(map[api.Name]Check, len(checks))
	for _, c := range checks {
		want[c.Service] = c
	}
	// Close first: a port may go from one Service to another.
	for name, c := range n.open {
		if w, ok := want[name]; !ok || w.Port != c.port {
			n.close(c, nil)
			delete(n.open, name)
		}
	}
	if len(want) == 0 {
		return true
	}
	at, err := listenAddrs(addrs)
	all := true
	for name, w := range want {
		c := n.open[name]
		if c == nil {
			c = &check{name: name, port: w.Port, servers: map[listenAddr]running{},
				limit: listener.NewLimit(maxConnsOfCheck, listener.MaxConnsOfClient, listener.MaxConnsOfNode)}
			n.open[name] = c
		}
		c.endpoints4, c.endpoints6 = w.Endpoints4, w.Endpoints6
		failed := err
		if failed == nil {
			n.close(c, at)
			failed = n.listen(c, at)
		}
		n.report(c, failed)
		all = all && failed == nil
	}
	return all
}

// close closes the ports of c on all addresses except keep. It cuts off connected clients, because there is no answer
// for them any more.
func (n *NodePortChecks) close(c *check, keep []listenAddr) {
	for p, r := range c.servers {
		if !slices.Contains(keep, p) {
			delete(c.servers, p)
			_ = r.server.Close()
			_ = r.listener.Close() // Serve may not have begun
		}
	}
}

// listen opens the missing ports of c.
func (n *NodePortChecks) listen(c *check, at []listenAddr) error {
	var failed []error
	for _, p := range at {
		if _, ok := c.servers[p]; ok {
			continue
		}
		l, err := listen(context.Background(), p.network, netip.AddrPortFrom(p.addr, c.port))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		l = n.limit.Listen(c.limit.Listen(l))
		r := newRunning(n.cfg.Log, l, n.handler(c))
		c.servers[p] = r
		n.served.Go(func() {
			if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				n.lost(c, p, r, err)
			}
		})
	}
	if len(failed) > 0 {
		return failed[0] // the other errors mostly say the same
	}
	return nil
}

// lost removes a server that ended by itself, so that the next Sync opens it again.
func (n *NodePortChecks) lost(c *check, p listenAddr, r running, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.servers[p] == r {
		delete(c.servers, p)
		n.cfg.Log.Warn("the health check of a Service ended", "service", c.name, "port", c.port, "err", err)
	}
}

// report reports a problem once to the Service's owner.
func (n *NodePortChecks) report(c *check, err error) {
	if err == nil {
		c.failed = ""
		return
	}
	text := fmt.Sprintf("load balancers cannot check this node on the Service's healthCheckNodePort: %v", err)
	if c.failed == text {
		return
	}
	c.failed = text
	n.cfg.Log.Warn("cannot open the health check of a Service", "service", c.name, "port", c.port, "err", err)
	n.cfg.Problem(c.name, api.Problem{Reason: "FailedToStartServiceHealthcheck", Message: text})
}

// handler answers on every path, byte for byte like kube-proxy.
func (n *NodePortChecks) handler(c *check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		endpoints := c.endpoints4
		if askedOverIPv6(r) {
			endpoints = c.endpoints6
		}
		n.mu.Unlock()
		healthy := n.cfg.State.Verdict().Healthy
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(endpoints))
		code := http.StatusOK
		if endpoints == 0 || !healthy {
			code = http.StatusServiceUnavailable
		}
		w.WriteHeader(code)
		// The client may have gone.
		_, _ = fmt.Fprintf(w, nodePortBody, c.name.Namespace, c.name.Name, endpoints, healthy)
	})
}

// askedOverIPv6 reports whether a request came to this machine over IPv6.
func askedOverIPv6(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	addr, err := netip.ParseAddrPort(at.String())
	return err == nil && addr.Addr().Unmap().Is6()
}

// nodePortBody has tabs and no newline at the end, like kube-proxy's.
const nodePortBody = `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %t
}`
