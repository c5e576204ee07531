package dns

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/text"
)

// defaultDomain is the zone of nearly every cluster.
const defaultDomain = "cluster.local"

// Config is what a Server serves. The zero value serves cluster.local on port
// 53 to a cluster of which this process is a pod.
type Config struct {
	// Corefile is the path of the user's Corefile, which replaces all of the built-in one. Empty means DefaultCorefile
	// or AdoptedCorefile if one exists, else the built-in one.
	Corefile string
	// Port serves every server block that names none; 0 means 53.
	Port uint16
	// ClusterDomain is the cluster's zone; empty means cluster.local. ClusterDomain, Kubeconfig and Master are for the
	// built-in Corefile only.
	ClusterDomain string
	// Kubeconfig and Master say where the API server is: a kubeconfig file, or
	// a URL that needs no credentials. At most one; none means in the cluster.
	Kubeconfig, Master string
	// ResolvConf is the file with the servers for names outside the cluster; empty means /etc/resolv.conf.
	ResolvConf string
	// Self are addresses that lead to this server although no interface of this machine has them, as the ClusterIP of
	// this server's own Service.
	Self []netip.Addr
	// AllowFrom are pods and nodes with public addresses. The built-in Corefile answers them and clients with private
	// addresses (10/8, fc00::/7, …). Other clients get REFUSED.
	AllowFrom []netip.Prefix
	// Zones are the zones of names outside the cluster. ZonePort serves them, with any Corefile; 0 means 8053. Names
	// returns the present table of the zones; nil while the objects are not read yet. ZoneTransferTo are the secondaries
	// that may transfer the zones, and are notified of changes.
	Zones          []string
	ZonePort       uint16
	Names          func() *names.Table
	ZoneTransferTo []netip.Addr
	// Log takes the lines of this package and of CoreDNS; nil discards them.
	Log *slog.Logger
}

// A Server is the cluster's DNS server, made by New.
type Server struct {
	cfg     Config
	paths   []string // the candidates if Config names no Corefile
	adopted string   // the candidate that is ignored if flags say which cluster to serve
	kubeDNS string   // directory of the ConfigMap kube-dns

	mu    sync.Mutex
	note  string            // the last remark about the Corefile that was logged
	tried [sha256.Size]byte // the Corefile of the last reload
}

// New returns a Server that does nothing before Run.
func New(cfg Config) *Server {
	if cfg.Port == 0 {
		cfg.Port = numbers.PortDNS
	}
	if cfg.ClusterDomain == "" {
		cfg.ClusterDomain = defaultDomain
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	if cfg.ZonePort == 0 {
		cfg.ZonePort = numbers.PortDNSZones
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, paths: []string{DefaultCorefile, AdoptedCorefile}, adopted: AdoptedCorefile, kubeDNS: kubeDNSDir}
}

// Run serves until ctx ends, and then for the Corefile's `lameduck` time, in which clients learn that the server leaves.
// Run then returns nil. It returns an error at once if the Corefile cannot be served.
func (s *Server) Run(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	defer captureLog(s.cfg.Log)()
	if s.cfg.Names != nil {
		setTable(s.cfg.Names)
	}
	in, err := s.read()
	if err != nil {
		return err
	}
	if err := checkPorts(in.blocks, s.cfg.Port); err != nil {
		return err
	}
	s.remark(slog.LevelWarn, in.note)
	stale.Set(0)
	for _, m := range []prometheus.Collector{stale, refused, keptAnswers} {
		_ = prometheus.Register(m) // with CoreDNS's metrics; it fails only if m is registered
	}
	beginFronts()
	defer endFronts()
	inst, err := s.start(in)
	if err != nil {
		return err
	}
	s.cfg.Log.Info("serving DNS", "corefile", in.Filepath, "on", listeners(inst))
	limitConnections(ctx)
	s.cfg.Log.Info("ending DNS: queries are answered until the lame duck time is over")
	// The reload plugin must not find a new Corefile any more.
	err = stop(inst)
	caddy.SetDefaultCaddyfileLoader("none", caddy.LoaderFunc(func(string) (caddy.Input, error) { return nil, nil }))
	if err != nil {
		return fmt.Errorf("end DNS: %w", err)
	}
	return nil
}

// validate returns an error for a Config that contradicts itself.
func (s *Server) validate() error {
	c := s.cfg
	switch {
	case c.Kubeconfig != "" && c.Master != "":
		return errors.New("kubeconfig and master are both given [give one: a kubeconfig names its server itself]")
	case len(caddy.Instances()) > 0:
		return errors.New("another DNS server runs in this process")
	}
	return nil
}

// start sets CoreDNS's process-wide settings and starts it. The listeners are open when start returns. If CoreDNS fails,
// start undoes its first steps.
func (s *Server) start(in input) (*caddy.Instance, error) {
	register()
	if err := dnsserver.SetDirectives(Plugins()); err != nil {
		return nil, fmt.Errorf("choose plugins: %w", err)
	}
	dnsserver.Port = strconv.Itoa(int(s.cfg.Port))
	dnsserver.Quiet, caddy.Quiet = true, true // Run logs the addresses
	caddy.SetDefaultCaddyfileLoader("fairway", caddy.LoaderFunc(s.reload))
	inst, err := caddy.Start(in)
	if err == nil {
		return inst, nil
	}
	// CoreDNS does not undo a failed start. The callbacks for a restart close the HTTP listeners without the lame duck
	// time.
	for _, undo := range slices.Concat(inst.OnRestart, inst.OnShutdown) {
		_ = undo() // the error of Start counts
	}
	hint := ""
	switch data := err.Error(); {
	case strings.Contains(data, "in-cluster configuration"):
		hint = " [outside a cluster, give --kubeconfig or --master]"
	case s.cfg.Kubeconfig != "" && strings.HasPrefix(data, "plugin/kubernetes"):
		hint = fmt.Sprintf(" [check the kubeconfig file %s]", s.cfg.Kubeconfig)
	}
	return nil, fmt.Errorf("serve Corefile %s: %w%s", in.Filepath, text.OneLine(err), hint)
}

// stale is for alerts: the log has a line only once.
var stale = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "fairway_dns_corefile_stale",
	Help: "1 if the changed Corefile cannot be served, so the server still uses the previous one",
})

// reload returns the user's Corefile, or the built-in one for the present resolv.conf. The reload plugin calls it every 30
// seconds. An unknown plugin is an error here, before CoreDNS closes a socket. Errors of its plugins CoreDNS finds
// itself, once for each change.
func (s *Server) reload(string) (caddy.Input, error) {
	in, err := s.read()
	if err != nil {
		stale.Set(1)
		s.remark(slog.LevelError, "the previous Corefile stays in use: "+err.Error())
		return nil, err
	}
	s.remark(slog.LevelWarn, in.note)
	switch served := served(); {
	case in.hash == served:
		stale.Set(0)
	case in.hash == s.tried:
		stale.Set(1)
	}
	s.tried = in.hash
	return in, nil
}

// served returns the hash of the served Corefile.
func served() (hash [sha256.Size]byte) {
	for _, i := range caddy.Instances() {
		if in, ok := i.Caddyfile().(input); ok {
			hash = in.hash
		}
	}
	return hash
}

// remark logs a remark if it differs from the last one.
func (s *Server) remark(level slog.Level, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if note != "" && note != s.note {
		s.cfg.Log.Log(context.Background(), level, note)
	}
	s.note = note
}
