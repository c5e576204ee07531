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

	"github.com/fairway-net/fairway/internal/service"
)

// A Check is what load balancers may ask of one Service: its healthCheckNodePort. Who
// asks over IPv4 will send IPv4, and is told of that family's endpoints.
type Check = service.HealthCheck

// NodePortConfig says how NodePortChecks work.
type NodePortConfig struct {
	Log   *slog.Logger
	State *State
	// Addrs hold the addresses to listen on, as service.Settings.NodePorts does: those
	// of this machine at the time of a Sync; 0.0.0.0/0 and ::/0 are all of a family.
	// Empty: all addresses. Nil: the same. It is asked at each Sync.
	Addrs func() []netip.Prefix
	// Problem is told when a Service's port cannot be opened, once for each reason. It
	// is called by Sync, must not call back, and should not wait. Nil: nobody is told.
	Problem func(service.Name, service.Problem)
}

// NodePortChecks answer load balancers on the ports of Services with
// externalTrafficPolicy: Local: 200 where the node has endpoints of the Service, 503
// where it has none or is not healthy itself.
type NodePortChecks struct {
	cfg NodePortConfig

	mu     sync.Mutex
	open   map[service.Name]*check
	ended  bool // by Run: nothing is opened any more
	served sync.WaitGroup
}

// A check is one Service's open port. Its fields are guarded by NodePortChecks.mu.
type check struct {
	name                   service.Name
	port                   uint16
	endpoints4, endpoints6 int
	servers                map[place]running
	failed                 string // why a port is not open, as last told; empty: all are
}

// NewNodePortChecks returns checks that listen nowhere yet.
func NewNodePortChecks(cfg NodePortConfig) *NodePortChecks {
	if cfg.Problem == nil {
		cfg.Problem = func(service.Name, service.Problem) {}
	}
	if cfg.Addrs == nil {
		cfg.Addrs = func() []netip.Prefix { return nil }
	}
	return &NodePortChecks{cfg: cfg, open: map[service.Name]*check{}}
}

// Run waits until ctx ends and closes all ports. Call Sync before or meanwhile; a later
// one does nothing.
func (n *NodePortChecks) Run(ctx context.Context) error {
	<-ctx.Done()
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
				_ = r.server.Close() // who is still there is cut off
			}
			_ = r.listener.Close() // Serve may not have begun
		})
	}
	n.served.Wait()
	return nil
}

// Sync makes checks all that there is: ports that are not in it are closed, new ones
// opened, numbers taken over. A port that cannot be opened is a Problem and is tried
// again by the next Sync; the others work. It does not wait for clients.
func (n *NodePortChecks) Sync(checks []Check) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	want := make(map[service.Name]Check, len(checks))
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
		return
	}
	at, err := places(n.cfg.Addrs())
	for name, w := range want {
		c := n.open[name]
		if c == nil {
			c = &check{name: name, port: w.Port, servers: map[place]running{}}
			n.open[name] = c
		}
		c.endpoints4, c.endpoints6 = w.Endpoints4, w.Endpoints6
		if err != nil {
			n.report(c, err)
			continue
		}
		n.close(c, at)
		n.report(c, n.listen(c, at))
	}
}

// close closes the ports of c that are not at one of the places. Whoever is connected
// is cut off: there is nothing left to say.
func (n *NodePortChecks) close(c *check, but []place) {
	for p, r := range c.servers {
		if !slices.Contains(but, p) {
			delete(c.servers, p)
			_ = r.server.Close()
			_ = r.listener.Close() // Serve may not have begun
		}
	}
}

// listen opens the port of c where it is not open yet.
func (n *NodePortChecks) listen(c *check, at []place) error {
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
		r := newRunning(n.cfg.Log, l, n.handler(c))
		c.servers[p] = r
		n.served.Go(func() {
			if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				n.lost(c, p, r, err)
			}
		})
	}
	if len(failed) > 0 {
		return failed[0] // the others are mostly the same in other words
	}
	return nil
}

// lost forgets a server that ended by itself, so that the next Sync opens it again.
func (n *NodePortChecks) lost(c *check, p place, r running, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.servers[p] == r {
		delete(c.servers, p)
		n.cfg.Log.Warn("health check of a service ended", "service", c.name, "port", c.port, "error", err)
	}
}

// report tells the Service's owner once what is the matter.
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
	n.cfg.Log.Warn("cannot open health check of a service", "service", c.name, "port", c.port, "error", err)
	n.cfg.Problem(c.name, service.Problem{Reason: "FailedToStartServiceHealthcheck", Message: text})
}

// handler answers on every path, byte for byte as kube-proxy does.
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
		// Who asked may have gone.
		_, _ = fmt.Fprintf(w, nodePortBody, c.name.Namespace, c.name.Name, endpoints, healthy)
	})
}

// askedOverIPv6 reports in which family a request came to this machine.
func askedOverIPv6(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	addr, err := netip.ParseAddrPort(at.String())
	return err == nil && addr.Addr().Unmap().Is6()
}

// nodePortBody is indented by tabs and ends without a newline, as kube-proxy's.
const nodePortBody = `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %t
}`
