-- migrate:up
-- Group roles without login: a process gets a login of its own that is a member of one of them.
-- Where the migrating user may not create roles (an embedded or a hosted database) they are left out.
DO $$
DECLARE
  role text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolsuper OR rolcreaterole)) THEN
    RAISE NOTICE 'no slowrank roles: % may not create roles', current_user;
    RETURN;
  END IF;
  FOREACH role IN ARRAY ARRAY['slowrank_owner', 'slowrank_streams', 'slowrank_api', 'slowrank_notifier',
                              'slowrank_grafana'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
  END LOOP;
END $$;
