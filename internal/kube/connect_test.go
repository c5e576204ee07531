package kube

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// apiServer answers every request with an empty list and records the request.
type apiServer struct {
	*httptest.Server
	auth, accept, agent string
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.auth, s.accept, s.agent = r.Header.Get("Authorization"), r.Header.Get("Accept"), r.UserAgent()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"ServiceList","items":[]}`))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func put(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTokenRotated: after the API server has refused a token, the next request reads the token file again.
func TestTokenRotated(t *testing.T) {
	good, asked := "old", 0
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		body, err := io.ReadAll(r.Body)
		switch {
		case r.Header.Get("Authorization") != "Bearer "+good:
			w.WriteHeader(http.StatusUnauthorized)
		case err != nil || r.Method == http.MethodPost && string(body) != "text":
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(s.Close)
	account := t.TempDir()
	put(t, filepath.Join(account, "ca.crt"), (&apiServer{Server: s}).ca())
	put(t, filepath.Join(account, "token"), "old")
	cfg, err := Connection{Master: s.URL}.restConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(verb string, requests int) error {
		t.Helper()
		before := asked
		err := client.Discovery().RESTClient().Verb(verb).AbsPath("/version").Body([]byte("text")).Do(t.Context()).Error()
		if asked != before+requests {
			t.Errorf("%s, good is %q: %d requests, want %d", verb, good, asked-before, requests)
		}
		return err
	}
	for i, token := range []string{"old", "new", "newer"} {
		good = token
		put(t, filepath.Join(account, "token"), token+"\n")
		verb := []string{"GET", "GET", "POST"}[i]
		if i > 0 {
			if err := ask(verb, 1); !apierrors.IsUnauthorized(err) {
				t.Errorf("the token before %q: %v", token, err)
			}
		}
		if err := ask(verb, 1); err != nil {
			t.Errorf("token %q: %v", token, err)
		}
	}
	good = "unknown"
	for range 2 {
		if err := ask("GET", 1); !apierrors.IsUnauthorized(err) {
			t.Errorf("a token that is not good: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(account, "token")); err != nil {
		t.Fatal(err)
	}
	good = "newer"
	if err := ask("GET", 1); err != nil {
		t.Errorf("the file is gone, and the token is good: %v", err)
	}
}

// TestFromPod: the service account's token and CA go to the server in --master, because the API's Service is not
// reachable before the agent runs.
func TestFromPod(t *testing.T) {
	s := newAPIServer(t)
	account := t.TempDir()
	put(t, filepath.Join(account, "token"), "secret\n")
	put(t, filepath.Join(account, "ca.crt"), s.ca())
	host, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "https://"), ":")

	for name, c := range map[string]Connection{
		"as the pod says": {UserAgent: "fairway/v1"},
		"with --master":   {UserAgent: "fairway/v1", Master: s.URL},
	} {
		t.Run(name, func(t *testing.T) {
			env := [2]string{host, port}
			if c.Master != "" {
				env = [2]string{"10.96.0.1", "443"} // not used
			}
			t.Setenv("KUBERNETES_SERVICE_HOST", env[0])
			t.Setenv("KUBERNETES_SERVICE_PORT", env[1])
			cfg, err := c.restConfig(account)
			if err != nil {
				t.Fatal(err)
			}
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			if s.auth != "Bearer secret" || !strings.HasPrefix(s.accept, "application/vnd.kubernetes.protobuf") || s.agent != "fairway/v1" {
				t.Errorf("the server was sent Authorization %q, Accept %q, User-Agent %q", s.auth, s.accept, s.agent)
			}
		})
	}

	t.Run("no token in the clear", func(t *testing.T) {
		cfg, err := Connection{Master: "http://127.0.0.1:8080"}.restConfig(account)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.BearerToken != "" || cfg.BearerTokenFile != "" {
			t.Errorf("the token would be sent to %s", cfg.Host)
		}
	})
}

func kubeconfig(server string) string {
	return `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "` + server + `", certificate-authority: ca.crt}}]
users: [{name: u, user: {token: abc}}]
`
}

func TestKubeconfig(t *testing.T) {
	s := newAPIServer(t)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "ca.crt"), s.ca()) // found next to the kubeconfig
	for name, c := range map[string]Connection{
		"server":   {Kubeconfig: put(t, filepath.Join(dir, "a"), kubeconfig(s.URL))},
		"--master": {Kubeconfig: put(t, filepath.Join(dir, "b"), kubeconfig("https://127.0.0.1:1")), Master: s.URL},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Connect(c)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			if s.auth != "Bearer abc" {
				t.Errorf("the server was sent Authorization %q", s.auth)
			}
		})
	}
}

// TestBadConnection: each mistake gives one line with the file and advice.
func TestBadConnection(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string { return put(t, filepath.Join(dir, name), text) }
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	for name, test := range map[string]struct {
		c    Connection
		want string
	}{
		"no file":      {Connection{Kubeconfig: dir + "/none"}, "read kubeconfig " + dir + "/none: no such file or directory"},
		"a directory":  {Connection{Kubeconfig: dir}, "read kubeconfig " + dir + ": is a directory"},
		"no YAML":      {Connection{Kubeconfig: write("y", "a: [")}, "read kubeconfig " + dir + "/y: "},
		"empty":        {Connection{Kubeconfig: write("e", "")}, "it names no cluster"},
		"no context":   {Connection{Kubeconfig: write("x", strings.Replace(kubeconfig("https://a"), "current-context: c", "current-context: d", 1))}, "context was not found for specified context: d"},
		"no CA file":   {Connection{Kubeconfig: write("c", kubeconfig("https://a"))}, "ca.crt"},
		"not in a pod": {Connection{}, "this process is not in a pod [give --kubeconfig FILE]"},
		"no URL":       {Connection{Master: "10.0.0.1:6443"}, `API server address "10.0.0.1:6443" is not a URL [write it as https://HOST:PORT]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Connect(test.c)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, test.want)
			}
			t.Log(err)
		})
	}
	for _, host := range []string{"http://10.0.0.1:8080", "http://[fd00::1]:8080", "http://api.example", "http://127.0.0.1.example:1"} {
		file := write("http", strings.Replace(kubeconfig(host), ", certificate-authority: ca.crt", "", 1))
		for name, c := range map[string]Connection{"--master": {Master: host}, "kubeconfig": {Kubeconfig: file}} {
			t.Run("in the clear, "+name+" "+host, func(t *testing.T) {
				_, err := Connect(c)
				if err == nil || !strings.Contains(err.Error(), "has no TLS") || !strings.Contains(err.Error(), "--allow-http-api-server") {
					t.Errorf("error %v, want one that names the flag", err)
				}
				c.AllowHTTP = true
				if _, err := Connect(c); err != nil {
					t.Errorf("with AllowHTTP: %v", err)
				}
			})
		}
	}
	for _, host := range []string{"http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost:8080", "http://127.9.9.9:1"} {
		if _, err := Connect(Connection{Master: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	t.Run("no token", func(t *testing.T) {
		_, err := Connection{Master: "https://127.0.0.1:1"}.restConfig(dir)
		if err == nil || !strings.Contains(err.Error(), "service account's token") {
			t.Errorf("error %v", err)
		}
	})
}
