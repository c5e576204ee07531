package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
)

func TestRow(t *testing.T) {
	svc := &path.Service{Type: "NodePort", Service: &service.Service{Name: api.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}},
		Ports: []path.ServicePort{{Port: service.Port{Port: 80, NodePort: 30080, Proto: api.TCP}}}}
	eps := []*service.Slice{{Endpoints: []service.SliceEndpoint{{Ready: true, Addr: netip.MustParseAddr("10.0.0.1")}, {Addr: netip.MustParseAddr("10.0.0.2")}}}}
	r := row(svc, eps, []string{"node-1"})
	if r.Type != "NodePort" || r.Ready != 1 || r.Endpoints != 2 || r.Finding != "" || r.Addresses[0] != "10.96.0.9" || r.Ports[0] != "80:30080/TCP" || r.Announcers[0] != "node-1" {
		t.Errorf("%+v", r)
	}
	if r := row(svc, nil, nil); r.Finding != "no endpoints" {
		t.Errorf("%+v", r)
	}
	svc.Type = loadBalancer
	if r := row(svc, eps, nil); !slices.Contains(r.Addresses, "<pending>") {
		t.Errorf("%+v", r)
	}
}

// Only the used endpoints have a share, by their weights.
func TestShares(t *testing.T) {
	three, one := uint16(3), uint16(1)
	all, more := endpoints([]service.EndpointReport{
		{Address: "10.0.0.1:80", Reason: "not ready", Weight: &one}, {Address: "10.0.0.2:80", Used: true, Weight: &three}, {Address: "10.0.0.3:80", Used: true, Weight: &one},
	}, health{})
	if more != 0 || all[0].Address != "10.0.0.2:80" || all[0].Share != 0.75 || all[1].Share != 0.25 || all[2].Share != 0 || all[2].Reason != "not ready" {
		t.Errorf("%+v", all)
	}
	if all, more := endpoints(make([]service.EndpointReport, maxEndpoints+7), health{}); len(all) != maxEndpoints || more != 7 {
		t.Errorf("%d endpoints, %d more", len(all), more)
	}
}

// open runs the command against a server, and returns a client that has followed the printed URL, and this URL.
func open(t *testing.T, server string) (*http.Client, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}], "users": [{"name": "c", "user": {}}],
		"clusters": [{"name": "c", "cluster": {"server": "`+server+`"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	printed, stdout := io.Pipe()
	var stderr bytes.Buffer
	c := New(command.Env{Stdout: stdout, Stderr: &stderr})
	c.SetArgs([]string{"--kubeconfig", file})
	ctx, stop := context.WithCancel(context.Background())
	c.SetContext(ctx)
	ended := make(chan error, 1)
	go func() {
		err := c.Execute()
		_ = stdout.CloseWithError(err)
		ended <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(printed).ReadString('\n')
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Timeout: 20 * time.Second}
	first, err := client.Get(strings.TrimSpace(line))
	if err != nil || first.StatusCode != http.StatusOK {
		t.Fatal(first, err)
	}
	first.Body.Close()
	return client, "http://" + first.Request.URL.Host
}

// list returns the state and the rows.
func list(t *testing.T, client *http.Client, url string) (all struct {
	State struct {
		Error, Advice string
		Loaded        bool
	}
	Rows []struct{ Name string }
}) {
	t.Helper()
	answer, err := client.Get(url + "/services.json")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUnread shows that a page without the cluster's objects says why, and does not say that there are none.
func TestUnread(t *testing.T) {
	forbidden := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "User \"eve\" cannot list it"}`)
	}))
	t.Cleanup(forbidden.Close)
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // accepts by its backlog, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	gone, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, x := range map[string]struct {
		server string
		want   []string
	}{
		"forbidden": {forbidden.URL, []string{"refuses to list", "endpointslices", "services", `User "eve" cannot list it`}},
		"refused":   {"http://" + gone.Addr().String(), []string{"cannot read the API server", "connection refused"}},
		"silent":    {"http://" + silent.Addr().String(), []string{"did not answer in time"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, url := open(t, x.server)
			var got = list(t, client, url)
			for end := time.Now().Add(20 * time.Second); got.State.Error == "" && time.Now().Before(end); got = list(t, client, url) {
				time.Sleep(100 * time.Millisecond)
			}
			for _, want := range x.want {
				if !strings.Contains(got.State.Error, want) {
					t.Errorf("%q lacks %q", got.State.Error, want)
				}
			}
			if got.State.Loaded || !strings.Contains(got.State.Advice, "--kubeconfig") || strings.Contains(got.State.Error, "\n") {
				t.Errorf("%+v", got.State)
			}
		})
	}
}
