package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairway-net/fairway/lab/metrics"
)

// MetricsPort is the port of the API metrics.k8s.io, for kube-apiserver alone.
const MetricsPort = 4443

// runMetrics serves the API metrics.k8s.io. kube-apiserver authorizes a request before it forwards the request.
func (c Config) runMetrics(ctx context.Context, log *slog.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(c.PKI, CertMetrics))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	server, err := metrics.New(log, config)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(c.pki("ca.crt"))
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	web := &http.Server{
		Addr: net.JoinHostPort(c.Address.String(), strconv.Itoa(MetricsPort)), Handler: server, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, VerifyConnection: isFrontProxy},
	}
	stop := context.AfterFunc(ctx, func() { web.Close() })
	defer stop()
	collecting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { server.Collect(collecting); close(done) }()
	err = web.ListenAndServeTLS(c.pki(CertMetrics+".crt"), c.pki(CertMetrics+".key"))
	cancel()
	<-done
	return err
}

func isFrontProxy(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 || s.PeerCertificates[0].Subject.CommonName != CertFrontProxy {
		return errors.New("only kube-apiserver may ask")
	}
	return nil
}
