package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/fairway-net/fairway/internal/text"
)

// A Connection is the way to the API server. The zero value uses the pod's service account.
type Connection struct {
	Kubeconfig string // path of a kubeconfig file; empty: the pod's service account
	Context    string // context of the kubeconfig; empty: the current context
	// Person allows kubectl's kubeconfig ($KUBECONFIG or ~/.kube/config), outside a pod and without Kubeconfig and
	// Master. An agent must not find one by accident.
	Person bool
	Master string // URL of the API server; empty: from the kubeconfig or the pod
	// QPS and Burst limit our requests; zero: client-go's defaults.
	QPS   float32
	Burst int
	// ContentType is the encoding of requests; empty: protobuf, which costs the API server and us the least.
	ContentType string
	// UserAgent is our name in the API server's logs; empty: client-go's default.
	UserAgent string
	// AllowHTTP accepts an API server without TLS on another machine. An attacker on the path to this server can change
	// all Services.
	AllowHTTP bool
}

const protobuf = "application/vnd.kubernetes.protobuf"

// serviceAccount is the directory in which the kubelet mounts a pod's credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Connect makes a client. It reads files but sends nothing yet.
func Connect(c Connection) (kubernetes.Interface, error) {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return nil, err
	}
	if err := noticeDeadConnections(); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server at %s: %w", cfg.Host, text.OneLine(err))
	}
	return client, nil
}

// noticeDeadConnections ends a silent connection after 15 s. A healthy watch may be silent for a long time, and a dead
// machine sends nothing that ends the connection. client-go waits 45 s. It reads the times only from the environment,
// where users may have set other values.
func noticeDeadConnections() error {
	for name, seconds := range map[string]string{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", // until a ping is sent
		"HTTP2_PING_TIMEOUT_SECONDS":      "5",  // until the ping must be answered
	} {
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// Server returns the URL of the API server; "" if there is none.
func (c Connection) Server() string {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return ""
	}
	return cfg.Host
}

func (c Connection) restConfig(account string) (*rest.Config, error) {
	if err := c.checkMaster(); err != nil {
		return nil, err
	}
	read := c.fromPod
	switch {
	case c.Kubeconfig != "":
		read = c.fromFile
	case c.Person && c.Master == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "":
		read = c.fromPerson
	}
	cfg, err := read(account)
	if err != nil {
		return nil, err
	}
	if err := c.checkTLS(cfg); err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = c.QPS, c.Burst, c.UserAgent
	cfg.ContentType = c.ContentType
	if cfg.ContentType == "" {
		cfg.ContentType = protobuf
	}
	cfg.AcceptContentTypes = cfg.ContentType + ",application/json"
	return cfg, nil
}

func (c Connection) checkMaster() error {
	if c.Master == "" {
		return nil
	}
	u, err := url.Parse(c.Master)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("API server address %q is not a URL [write it as https://HOST:PORT]", c.Master)
	}
	return nil
}

// checkTLS refuses an API server without TLS on another machine.
func (c Connection) checkTLS(cfg *rest.Config) error {
	u, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil || u.Scheme == "https" || c.AllowHTTP {
		return nil // the client refuses an invalid URL
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("API server %s has no TLS: an attacker on the path to it can change all Services [use https://, or --allow-http-api-server]", u)
}

func (c Connection) fromFile(string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, text.OneLine(withoutPath(err)))
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, text.OneLine(err))
	}
	return c.fromConfig(file, c.Kubeconfig)
}

// fromPerson reads kubectl's files.
func (c Connection) fromPerson(string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	file, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", text.OneLine(err))
	}
	if _, err := os.Stat(rules.GetDefaultFilename()); err != nil && len(file.Clusters) == 0 && len(file.Contexts) == 0 {
		return nil, fmt.Errorf("find the API server: no kubeconfig at %s [give --kubeconfig FILE, or set KUBECONFIG]", rules.GetDefaultFilename())
	}
	return c.fromConfig(file, rules.GetDefaultFilename())
}

func (c Connection) fromConfig(file *clientcmdapi.Config, path string) (*rest.Config, error) {
	cfg, err := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{
		ClusterInfo: clientcmdapi.Cluster{Server: c.Master}, CurrentContext: c.Context,
	}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("read kubeconfig %s: it names no cluster [is it empty, or is current-context missing?]", path)
	case err != nil:
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, text.OneLine(err))
	}
	return cfg, nil
}

// fromPod uses the service account's token and CA. With Master, requests go there instead of the Service's address that
// the pod was given: without a proxy on the node, packets to a Service's address get nowhere.
func (c Connection) fromPod(account string) (*rest.Config, error) {
	cfg := &rest.Config{Host: c.Master}
	if cfg.Host == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("find the API server: this process is not in a pod [give --kubeconfig FILE]")
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		cfg.Host = "https://" + host + ":" + port
	}
	if strings.HasPrefix(cfg.Host, "http://") {
		return cfg, nil // a token must not travel unencrypted
	}
	token := filepath.Join(account, "token")
	if _, err := os.ReadFile(token); err != nil {
		return nil, fmt.Errorf("read the service account's token: %w [outside a pod, give --kubeconfig FILE]", err)
	}
	ca := filepath.Join(account, "ca.crt")
	cas, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("read the service account's CA: %w", err)
	}
	cfg.CAData = cas
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper { return newCATransport(base, ca, cas) })
	// Unlike Config.BearerTokenFile, this transport also reads the file again after the API server has refused a token.
	cfg.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(token)))
	return cfg, nil
}

// withoutPath removes the file's name from an error of package os, because the message has it already.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Reach reports an error if no API server answers at a connection.
func Reach(ctx context.Context, c Connection) error {
	client, err := Connect(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return fmt.Errorf("reach the API server %s: %w", c.Master, text.RequestError(err))
	}
	return nil
}
