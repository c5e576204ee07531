package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fairway-net/fairway/internal/service"
)

// l2Store is an API server with ServiceL2Statuses.
type l2Store struct {
	dynamic.ResourceInterface

	mu      sync.Mutex
	objects map[string]map[string]any
	fail    int // requests to come
}

func (s *l2Store) answer() error {
	if s.fail--; s.fail >= 0 {
		return errors.New("not now")
	}
	return nil
}

func (s *l2Store) List(_ context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &unstructured.UnstructuredList{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		u := unstructured.Unstructured{Object: s.objects[name]}
		if o.LabelSelector == labelAnnouncer+"="+u.GetLabels()[labelAnnouncer] {
			list.Items = append(list.Items, *u.DeepCopy())
		}
	}
	return list, s.answer()
}

func (s *l2Store) Delete(_ context.Context, name string, _ metav1.DeleteOptions, _ ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.answer()
	if err == nil {
		delete(s.objects, name)
	}
	return err
}

// put is server-side apply, nearly.
func (s *l2Store) put(name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var o map[string]any
	if err := errors.Join(s.answer(), json.Unmarshal(data, &o)); err != nil {
		return err
	}
	have := s.objects[name]
	if have == nil {
		have = map[string]any{}
	}
	if status, ok := o["status"]; ok {
		have["status"] = status
	} else {
		maps.Copy(have, o)
	}
	s.objects[name] = have
	return nil
}

// l2Client is an l2Store as a client.
type l2Client struct{ *l2Store }

func (c l2Client) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	return nil, c.put(name, data)
}

// said is the objects in a line each.
func (s *l2Store) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, o := range s.objects {
		u := unstructured.Unstructured{Object: o}
		get := func(field string) string { v, _, _ := unstructured.NestedString(o, "status", field); return v }
		owners := u.GetOwnerReferences()
		all = append(all, fmt.Sprintf("%s announces %s/%s on %v, of %d owners", get("node"), get("serviceNamespace"), get("serviceName"), interfacesOf(&u), len(owners)))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// TestL2Statuses: there is an object for each Service that the node announces, whatever fails and
// whatever a speaker before has left, and none any more when the speaker has ended.
func TestL2Statuses(t *testing.T) {
	web, api := service.Name{Namespace: "shop", Name: "web"}, service.Name{Namespace: "shop", Name: "api"}
	left := func(node string, of service.Name) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"name": "l2-abcde", "labels": map[string]any{labelAnnouncer: node, labelServiceName: of.Name, labelServiceNamespace: of.Namespace}},
			"status":   map[string]any{"node": node, "serviceName": of.Name, "serviceNamespace": of.Namespace},
		}
	}
	store := &l2Store{objects: map[string]map[string]any{"l2-abcde": left("node-1", api), "l2-fghij": left("node-2", web)}, fail: 2}
	var mu sync.Mutex
	informed := 0
	w := &L2Statuses{
		log: slog.New(slog.DiscardHandler), client: l2Client{store}, node: "node-1", uid: func() string { return "1234" }, wake: make(chan struct{}, 1),
		inform: func(service.Name, string, string) { mu.Lock(); informed++; mu.Unlock() },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); store.said() != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s; want %s", store.said(), want)
			}
		}
	}
	const other = "node-2 announces shop/web on [], of 0 owners"
	w.Set(map[service.Name][]string{web: {"eth0"}})
	until("node-1 announces shop/web on [eth0], of 1 owners; " + other)
	w.Set(map[service.Name][]string{web: {"eth0", "eth1"}, api: {"eth0"}})
	until("node-1 announces shop/api on [eth0], of 1 owners; node-1 announces shop/web on [eth0 eth1], of 1 owners; " + other)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	until(other)
	if informed != 2 {
		t.Errorf("%d events, want one for each Service", informed)
	}
}
