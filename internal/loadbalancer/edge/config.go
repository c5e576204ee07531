package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/cli/configfile"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// Kind is the apiVersion and kind of the configuration file.
var Kind = configfile.Kind{APIVersion: "edge.fairway.net/v1alpha1", Kind: "EdgeConfiguration"}

// The targets of connections.
const (
	TargetInstance = "instance" // node ports
	TargetIP       = "ip"       // pods
)

// The source of a connection that nodes or pods see.
const (
	SourceMasquerade = "masquerade" // this machine
	SourceKeep       = "keep"       // the client
)

// The origin of routes to pods.
const (
	RoutesNone   = "none"   // another program makes them
	RoutesStatic = "static" // this program makes one for each podCIDR
	RoutesBGP    = "bgp"    // routers announce them
)

// Config is a valid and complete configuration.
type Config struct {
	Kubeconfig        string
	LoadBalancerClass string
	Addresses         []netip.Prefix // the load balancers' addresses that this machine serves
	TargetType        string
	ClientSource      string
	Routes            string
	ClusterCIDRs      []netip.Prefix // contain all podCIDRs; empty: unknown
	ProxyMode         string
	Balance           service.Algorithm // for Services without an algorithm
	Checks            Checks
	Announce          *Announce // nil: routers lead packets to this machine
	Routers           *Routers  // for routes by BGP
	Metrics           string    // address for /metrics and /healthz; empty: none
}

// Checks are the parameters of health checks.
type Checks struct {
	Interval, Timeout  time.Duration
	Healthy, Unhealthy int    // the number of answers in a row that change the state
	PerSecond          int    // the limit; with too many targets the interval is longer
	ProxyPort          uint16 // of /healthz on nodes, for externalTrafficPolicy Cluster
}

// file is the configuration file.
type file struct {
	APIVersion         string        `json:"apiVersion"`
	Kind               string        `json:"kind"`
	Kubeconfig         string        `json:"kubeconfig"`
	LoadBalancerClass  string        `json:"loadBalancerClass"`
	Addresses          []string      `json:"addresses"`
	TargetType         string        `json:"targetType"`
	ClientSource       string        `json:"clientSource"`
	Routes             string        `json:"routes"`
	ClusterCIDRs       []string      `json:"clusterCIDRs"`
	ProxyMode          string        `json:"proxyMode"`
	MetricsBindAddress string        `json:"metricsBindAddress"`
	Balance            string        `json:"balance"`
	Announce           *announceFile `json:"announce"`
	BGP                *routersFile  `json:"bgp"`
	HealthCheck        struct {
		Interval           string  `json:"interval"`
		Timeout            string  `json:"timeout"`
		HealthyThreshold   *int    `json:"healthyThreshold"`
		UnhealthyThreshold *int    `json:"unhealthyThreshold"`
		PerSecond          *int    `json:"perSecond"`
		ProxyPort          *uint16 `json:"proxyPort"`
	} `json:"healthCheck"`
}

// Load reads a configuration file.
func Load(path string) (*Config, error) {
	var f file
	if err := configfile.Read(path, Kind, &f); err != nil {
		return nil, err
	}
	c, err := f.resolve()
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse is Load for the text of a file.
func Parse(data []byte) (*Config, error) {
	var f file
	if err := configfile.Decode(data, Kind, &f); err != nil {
		return nil, err
	}
	return f.resolve()
}

// resolve fills in defaults, and checks the rest.
func (f *file) resolve() (*Config, error) {
	c := &Config{
		Kubeconfig: f.Kubeconfig, LoadBalancerClass: f.LoadBalancerClass, Metrics: f.MetricsBindAddress,
		TargetType: cmp.Or(f.TargetType, TargetInstance), Routes: cmp.Or(f.Routes, RoutesNone), ProxyMode: cmp.Or(f.ProxyMode, datapath.NFTables),
	}
	c.ClientSource = cmp.Or(f.ClientSource, map[string]string{TargetInstance: SourceMasquerade, TargetIP: SourceKeep}[c.TargetType])
	var err error
	if c.Addresses, err = prefixes("addresses", f.Addresses); err != nil {
		return nil, err
	}
	if c.ClusterCIDRs, err = prefixes("clusterCIDRs", f.ClusterCIDRs); err != nil {
		return nil, err
	}
	var err1, err2, err3 error
	c.Balance, err1 = balance(f.Balance)
	c.Announce, err2 = f.Announce.resolve()
	c.Routers, err3 = f.BGP.resolve()
	if err := errors.Join(f.checks(&c.Checks), err1, err2, err3, c.check()); err != nil {
		return nil, text.OneLine(err)
	}
	return c, nil
}

// checks reads healthCheck.
func (f *file) checks(c *Checks) error {
	h := &f.HealthCheck
	interval, err1 := duration("healthCheck.interval", h.Interval, 5*time.Second, 100*time.Millisecond, 10*time.Minute)
	timeout, err2 := duration("healthCheck.timeout", h.Timeout, min(2*time.Second, interval), 10*time.Millisecond, max(interval, 10*time.Millisecond))
	healthy, err3 := number("healthCheck.healthyThreshold", h.HealthyThreshold, 2, 1, 100)
	unhealthy, err4 := number("healthCheck.unhealthyThreshold", h.UnhealthyThreshold, 3, 1, 100)
	pace, err5 := number("healthCheck.perSecond", h.PerSecond, 500, 1, 100_000)
	*c = Checks{Interval: interval, Timeout: timeout, Healthy: healthy, Unhealthy: unhealthy, PerSecond: pace, ProxyPort: numbers.PortHealthz}
	if h.ProxyPort != nil {
		c.ProxyPort = *h.ProxyPort
	}
	if c.ProxyPort == 0 {
		err5 = errors.Join(err5, errors.New("healthCheck.proxyPort is 0 [leave it out for 10256, that of kube-proxy]"))
	}
	return errors.Join(err1, err2, err3, err4, err5)
}

// check returns an error for fields that contradict each other.
func (c *Config) check() error {
	one := func(field, value string, all ...string) error {
		if slices.Contains(all, value) {
			return nil
		}
		return fmt.Errorf("%s is %q [choose one of %s]", field, value, strings.Join(all, ", "))
	}
	all := []error{
		one("targetType", c.TargetType, TargetInstance, TargetIP),
		one("clientSource", c.ClientSource, SourceMasquerade, SourceKeep),
		one("routes", c.Routes, RoutesNone, RoutesStatic, RoutesBGP),
		one("proxyMode", c.ProxyMode, append(modes(), datapath.Auto)...),
	}
	if c.Kubeconfig == "" {
		all = append(all, errors.New("kubeconfig is missing [name a file with the right to read services and nodes]"))
	}
	if len(c.Addresses) == 0 {
		all = append(all, errors.New("addresses are missing [list the ranges that load balancers' addresses are taken from: no others are served]"))
	}
	if c.TargetType == TargetInstance && c.Routes != RoutesNone {
		all = append(all, errors.New("routes are for targetType ip: node ports need none [leave them out]"))
	}
	switch {
	case c.Routes != RoutesBGP && c.Routers != nil:
		all = append(all, errors.New("bgp is for routes bgp [add routes: bgp, or leave it out]"))
	case c.Routes == RoutesBGP && c.Routers == nil:
		all = append(all, errors.New("routes bgp needs bgp [name myASN and peers: docs/edge.md]"))
	case c.Routes == RoutesBGP && len(c.ClusterCIDRs) == 0:
		all = append(all, errors.New("routes bgp needs clusterCIDRs [the pods' ranges: no other route is taken from routers]"))
	}
	if c.ClientSource == SourceKeep && (c.ProxyMode == datapath.Userspace || c.ProxyMode == datapath.Auto) {
		all = append(all, fmt.Errorf("proxyMode %s cannot promise to keep clients' addresses [choose %s]", c.ProxyMode, datapath.NFTables))
	}
	if c.Metrics != "" {
		if _, _, err := net.SplitHostPort(c.Metrics); err != nil {
			all = append(all, fmt.Errorf("metricsBindAddress %q is no HOST:PORT [such as 127.0.0.1:%d]", c.Metrics, numbers.PortEdgeMetrics))
		}
	}
	return errors.Join(all...)
}

// Stateless reports whether an edge can continue connections of another edge.
func (c *Config) Stateless() bool {
	return c.ClientSource == SourceKeep && (c.Balance == service.SourceHash || c.Balance == service.Maglev)
}

func prefixes(field string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, data := range texts {
		p, err := netip.ParsePrefix(data)
		if a, single := netip.ParseAddr(data); single == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			return nil, fmt.Errorf("%s has %q, which is no range [write it as 192.0.2.0/24]", field, data)
		}
		if p.Bits() == 0 {
			return nil, fmt.Errorf("%s has %q: that is every address [list the ranges that are meant]", field, data)
		}
		all = append(all, p.Masked())
	}
	return service.Widest(all), nil
}

func duration(field, data string, fallback, lowest, highest time.Duration) (time.Duration, error) {
	if data == "" {
		return fallback, nil
	}
	d, err := time.ParseDuration(data)
	if err != nil || d < lowest || d > highest {
		return fallback, fmt.Errorf("%s is %q [write a time from %v to %v, such as 5s]", field, data, lowest, highest)
	}
	return d, nil
}

func number(field string, n *int, fallback, lowest, highest int) (int, error) {
	switch {
	case n == nil:
		return fallback, nil
	case *n < lowest || *n > highest:
		return fallback, fmt.Errorf("%s is %d [from %d to %d]", field, *n, lowest, highest)
	}
	return *n, nil
}

// modes are the modes of an edge. Mode ebpf is for sockets of nodes and pods, and an edge has none.
func modes() []string {
	return slices.DeleteFunc(datapath.Modes(), func(mode string) bool { return mode == datapath.EBPF })
}
