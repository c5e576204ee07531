// Package page has the command `fairway page`, the local web page of a cluster.
//
//	API server ─ watch ─→ kubepath.Live ─→ rows, state ─→ web.Page ─→ browsers
//	           ←─ reads ─ source: a Service's view, its announcers, a path ←─ requests ─┘
package page

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	web "github.com/fairway-net/fairway/internal/path/page"
)

// maxHeader bounds the headers of a request.
const maxHeader = 16 << 10

// settings are the flags.
type settings struct {
	connection kube.Connection
	port       uint16
	scope      command.LoadBalancerScope
}

// New builds `fairway page`.
func New(e command.Env) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:        "page",
		SuggestFor: []string{"dashboard", "ui", "web"},
		Short:      "Serve a web page of the cluster on this machine: Services, endpoints with reasons, traffic, paths",
		Long: `Serve a web page of the cluster on this machine, until it is interrupted.

The page lists the Services, and changes as they change. A Service's view says where packets to each of
its addresses go, why each endpoint is used or not, which nodes announce it, which policies select its
pods, and its events. The map shows the traffic of nodes, Services and pods, as fairway top does. "Ask for
a path" answers as fairway path does, and sends a probe if it is told to.

It listens on 127.0.0.1 only. Open the URL that the command prints: it has a token, and nobody gets in
without it. The page shows what your kubeconfig may read. It needs the rights to list and watch
Services and EndpointSlices, and says what else it could not read.`,
		Example: `  fairway page
  fairway page --port 8080 --context production`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return serve(c.Context(), e, s)
		},
	}
	command.AddConnection(e, c.Flags(), &s.connection)
	command.AddLoadBalancerScope(c.Flags(), "load-balancer-namespace", &s.scope)
	c.Flags().Uint16Var(&s.port, "port", 0, "`port` on 127.0.0.1 (default any free port)")
	return c
}

// serve runs the page until ctx ends.
func serve(ctx context.Context, e command.Env, s settings) error {
	// The page shows its errors itself, so the terminal stays quiet.
	live, err := kubepath.Connect(s.connection, command.NewLog(e.Stderr, slog.LevelError))
	if err != nil {
		return err
	}
	balancers, err := loadbalancer.ConnectAnnounced(s.connection, s.scope.Namespace, s.scope.Class)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		return fmt.Errorf("listen: %w [choose another --port]", err)
	}
	src := &source{env: e, connection: s.connection, server: s.connection.Server(), balancers: balancers, live: live}
	host, token := l.Addr().String(), rand.Text()
	page := web.New(host, token, src)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := &http.Server{
		Handler: page, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 2)
	var parts sync.WaitGroup
	parts.Go(func() { ended <- live.Store.Run(ctx) })
	parts.Go(func() { ended <- server.Serve(l) })
	fmt.Fprintf(e.Stdout, "http://%s/?token=%s\n", host, token)
	p := publisher{source: src, page: page}
	parts.Go(func() { p.followAnnouncers(ctx) })
	err = p.run(ctx, ended)
	stop()
	_ = server.Close()
	parts.Wait()
	return err
}
