-- Tell whether a publication was made or changed after the catalog horizon of a slot that inherited no older one.
SELECT
    age(p.xmin) < age(s.catalog_xmin) AND NOT EXISTS (
        SELECT FROM pg_replication_slots AS o
        WHERE o.slot_name <> s.slot_name AND age(o.catalog_xmin) >= age(s.catalog_xmin)
    ) AS late
FROM pg_publication AS p, pg_replication_slots AS s
WHERE p.pubname = %(publication)s AND s.slot_name = %(slot)s
