package health

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// Config configures a Server.
type Config struct {
	Log *slog.Logger
	// Healthz and Metrics are the addresses of the two servers. An invalid address means no server.
	Healthz, Metrics netip.AddrPort
	State            *State
	// Eligible reports whether load balancers may use the node: the API server knows it, and it is not about to be
	// deleted.
	Eligible func() bool
	// NotEligible returns the reason why the node is not eligible. Anybody who reaches the node may read it. Nil: no
	// reason is given.
	NotEligible func() string
	// Status returns the value that /statusz shows as JSON; nil: there is no /statusz.
	Status func() any
	// PortInUse gets an error while a port is in use and Wait is set, and nil afterwards. Nil: the error is only logged.
	PortInUse func(error)
	// Families are the families in the answer of /healthz: "IPv4" and "IPv6". They share one state, because one pass
	// writes both.
	Families []string
	// ProxyMode is the text of /proxyMode. Version is this program's version. Both are labels of the metric fairway_info.
	ProxyMode, Version string
	// Registry has the metrics of /metrics. The Server adds fairway_info and kube-proxy's counters of health answers.
	Registry      *prometheus.Registry
	patience      time.Duration // 0: listenPatience
	maxConns      int           // connections of other machines to each server; 0: listener.MaxConns
	headerTimeout time.Duration // 0: the constant of that name
	answerTimeout time.Duration // 0: the constant of that name
	connState     func(net.Conn, http.ConnState)

	// Wait lets Run wait for ports that are in use. A kube-proxy that is being replaced has these ports, and answers for
	// the node, until it ends.
	Wait bool
}

// With Config.Wait, Run tries to listen every listenAgain. It reports ports that are in use for longer than
// listenPatience: an agent that ends keeps its ports for a moment after the start of its successor.
const (
	listenAgain    = time.Second
	listenPatience = 5 * time.Second
)

// closeTimeout is the time that Run gives to answers in progress.
const closeTimeout = time.Second

// A Server answers on the ports in its Config.
type Server struct {
	cfg            Config
	healthz, livez *prometheus.CounterVec // by status code
	open           []running              // by Listen

	mu    sync.Mutex
	bound map[string]net.Addr // by the server's name
}

// New returns a Server that does not listen yet.
func New(cfg Config) *Server {
	cfg.maxConns = cmp.Or(cfg.maxConns, listener.MaxConns)
	cfg.headerTimeout = cmp.Or(cfg.headerTimeout, headerTimeout)
	cfg.answerTimeout = cmp.Or(cfg.answerTimeout, answerTimeout)
	cfg.patience = cmp.Or(cfg.patience, listenPatience)
	if cfg.PortInUse == nil {
		cfg.PortInUse = func(error) {}
	}
	s := &Server{cfg: cfg, bound: map[string]net.Addr{}}
	counter := func(path string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_proxy_" + path + "_total",
			Help: "Answers of /" + path + " by status code",
		}, []string{"code"})
		cfg.Registry.MustRegister(v)
		return v
	}
	s.healthz, s.livez = counter("healthz"), counter("livez")
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "info", Help: "1; the labels are the version and the proxy mode",
		ConstLabels: prometheus.Labels{"version": cfg.Version, "mode": cfg.ProxyMode},
	})
	info.Set(1)
	cfg.Registry.MustRegister(info)
	return s
}

// Listen opens the ports. Call it before any rule is written, so that a port in use is found while there is nothing to
// undo. With Config.Wait a port in use is no error, because Run tries again.
func (s *Server) Listen(ctx context.Context) error {
	err := s.listen(ctx)
	if err != nil && s.cfg.Wait {
		s.cfg.Log.Debug("cannot listen yet", "err", err)
		return nil
	}
	return withHolder(err)
}

func (s *Server) listen(ctx context.Context) error {
	servers := []struct {
		name, flag string
		addr       netip.AddrPort
		handler    http.Handler
	}{
		{"healthz", "--healthz-bind-address", s.cfg.Healthz, s.healthMux()},
		{"metrics", "--metrics-bind-address", s.cfg.Metrics, s.metricsMux()},
	}
	for _, v := range servers {
		if !v.addr.IsValid() {
			continue
		}
		l, err := listen(ctx, "tcp", v.addr)
		if err != nil {
			for _, r := range s.open {
				r.listener.Close()
			}
			s.open = nil
			return fmt.Errorf("serve %s: %w [end that program, or choose another address with %s]", v.name, err, v.flag)
		}
		s.note(v.name, l.Addr())
		s.cfg.Log.Info("listening", "server", v.name, "address", l.Addr().String())
		l = listener.NewLimit(s.cfg.maxConns, listener.MaxConnsOfClient, listener.MaxConnsOfNode).Listen(l)
		r := newRunning(s.cfg.Log, l, v.handler)
		r.server.ReadHeaderTimeout, r.server.WriteTimeout, r.server.ConnState = s.cfg.headerTimeout, s.cfg.answerTimeout, s.cfg.connState
		s.open = append(s.open, r)
	}
	return nil
}

// Run answers until ctx ends, which is no error. If a server cannot listen, it closes all servers and returns the
// error. With Config.Wait it tries again instead, and reports ports that stay in use.
func (s *Server) Run(ctx context.Context) error {
	again := time.NewTicker(listenAgain)
	defer again.Stop()
	patience, reported := time.Now().Add(s.cfg.patience), false
	for s.open == nil {
		err := s.listen(ctx)
		if err == nil {
			break // there may be no port, if none is configured
		}
		if !s.cfg.Wait {
			return withHolder(err)
		}
		if !reported && !time.Now().Before(patience) {
			reported, err = true, withHolder(err)
			s.cfg.Log.Warn("cannot listen, will try again until the other program has ended", "err", err)
			s.cfg.PortInUse(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
	s.cfg.PortInUse(nil)
	return serve(ctx, s.open)
}

// Addr returns the address of the server "healthz" or "metrics"; nil while it does not listen. It differs from the
// Config if the Config has port 0.
func (s *Server) Addr(name string) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound[name]
}

func (s *Server) note(name string, addr net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound[name] = addr
}

// listen opens a port, without waiting. As in kube-proxy and package net, both 0.0.0.0 and :: stand for both families
// in the network "tcp".
func listen(ctx context.Context, network string, addr netip.AddrPort) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, network, addr.String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, portInUse(addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%v is not an address of this machine", addr.Addr())
	}
	return l, err
}

// portInUse is the error for an address on which another program listens.
type portInUse netip.AddrPort

func (p portInUse) Error() string {
	a := netip.AddrPort(p)
	return fmt.Sprintf("port %d of %v is in use", a.Port(), a.Addr())
}

// withHolder adds the process that has the port to a portInUse. It searches all of /proc.
func withHolder(err error) error {
	var p portInUse
	if !errors.As(err, &p) {
		return err
	}
	by, ok := listener.Find(netip.AddrPort(p).Port())
	if !ok {
		return err
	}
	return fmt.Errorf("%v listens there: %w", by, err)
}

// running is one HTTP server and its port.
type running struct {
	listener net.Listener
	server   *http.Server
}

// Timeouts, so that a client that sends or reads nothing does not keep a connection for ever.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second // metrics of thousands of Services are some megabytes
	idleTimeout   = time.Minute      // longer than the interval of probes and scrapes
	maxHeader     = 16 << 10         // bytes
)

func newRunning(log *slog.Logger, l net.Listener, h http.Handler) running {
	return running{l, &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// serve answers until ctx ends or a server fails. Then it ends all servers.
func serve(ctx context.Context, all []running) (err error) {
	failed := make(chan error, len(all))
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			if err := r.server.Serve(r.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve on %v: %w", r.listener.Addr(), err)
			}
		})
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, r := range all {
		if r.server.Shutdown(grace) != nil {
			_ = r.server.Close() // a client that is still there is cut off
		}
	}
	wg.Wait()
	return err
}

func (s *Server) healthMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		v, eligible := s.cfg.State.Verdict(), s.cfg.Eligible()
		why := v.Reason()
		if why == "" && !eligible && s.cfg.NotEligible != nil {
			why = s.cfg.NotEligible()
		}
		s.answer(w, s.healthz, v, verdict{v.Healthy, &eligible, why})
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		v := s.cfg.State.Verdict()
		s.answer(w, s.livez, v, verdict{v.Live, nil, v.Reason()})
	})
	if s.cfg.Status != nil {
		mux.HandleFunc("GET /statusz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.cfg.Status()) })
	}
	return mux
}

// verdict is the answer of one path of the health server.
type verdict struct {
	well     bool
	eligible *bool // nil: the path ignores it
	reason   string
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // a year beyond 9999
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client may have gone
}

// report is kube-proxy's answer, field by field.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"`
	// Reason says why the status code is 503. kube-proxy does not have it, so it is left out with 200.
	Reason string `json:"reason,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answer writes the answer of kube-proxy. "healthy" is the state of the proxy itself; the status code also counts
// eligible, on paths that use it. "lastUpdated" is the current time while all is well, for old monitors that take an
// old time for a hanging proxy. "status" says whether the rules are up to date.
func (s *Server) answer(w http.ResponseWriter, count *prometheus.CounterVec, v Verdict, say verdict) {
	r := report{LastUpdated: v.Synced, CurrentTime: v.Now, NodeEligible: say.eligible, Healthy: say.well}
	if !v.Synced.IsZero() || !v.Healthy {
		r.Status = map[string]familyReport{}
		for _, f := range s.cfg.Families {
			r.Status[f] = familyReport{v.Synced, v.Healthy}
		}
	}
	code := http.StatusServiceUnavailable
	if say.well && (say.eligible == nil || *say.eligible) {
		code = http.StatusOK
		r.LastUpdated = v.Now
	} else {
		r.Reason = say.reason
	}
	count.WithLabelValues(fmt.Sprint(code)).Inc()
	writeJSON(w, code, r)
}

func (s *Server) metricsMux() http.Handler {
	text := func(t string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = io.WriteString(w, t)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{Registry: s.cfg.Registry}))
	mux.HandleFunc("/proxyMode", text(s.cfg.ProxyMode))
	mux.HandleFunc("/healthz", text("ok"))
	return mux
}
